//! Owned handles of the library's objects, and references to the objects that they stand on.
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use moepage_sys as sys;

use crate::engine::Lender;
use crate::error::{check, Error, Result, Status};

/// A type of objects that the library gives out and takes back.
pub(crate) trait Object {
    /// The close or destroy function.
    const DESTROY: unsafe extern "C" fn(*mut Self) -> i32;
    /// What is called instead for an object that an engine lends.
    const LEAVE: Option<unsafe extern "C" fn(*mut Self) -> i32> = None;
}

macro_rules! objects {
    ($($object:ident: $destroy:ident,)*) => {
        $( impl Object for sys::$object {
            const DESTROY: unsafe extern "C" fn(*mut Self) -> i32 = sys::$destroy;
        } )*
    };
}

objects! {
    moepage_device: moepage_device_close,
    moepage_model: moepage_model_close,
    moepage_expert_pool: moepage_expert_pool_destroy,
    moepage_kv_pool: moepage_kv_pool_destroy,
    moepage_engine: moepage_engine_close,
    moepage_trace: moepage_trace_close,
    moepage_controller: moepage_controller_destroy,
    moepage_predictor: moepage_predictor_destroy,
    moepage_paged: moepage_paged_destroy,
}

impl Object for sys::moepage_session {
    const DESTROY: unsafe extern "C" fn(*mut Self) -> i32 = sys::moepage_session_destroy;
    const LEAVE: Option<unsafe extern "C" fn(*mut Self) -> i32> = Some(sys::moepage_session_cancel);
}

thread_local! {
    /// Whether this thread is in a callback.
    static CALLED_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs a callback. An object that is dropped in it is leaked: to destroy it would wait for the
/// thread that the callback keeps waiting.
pub(crate) fn called_back<T>(callback: impl FnOnce() -> T) -> T {
    struct Left(bool);
    impl Drop for Left {
        fn drop(&mut self) {
            CALLED_BACK.with(|flag| flag.set(self.0));
        }
    }
    let _left = Left(CALLED_BACK.with(|flag| flag.replace(true)));
    callback()
}

/// Owns an object, and what the library may use until the object is no more (callbacks, bytes).
///
/// Should the library refuse to destroy it, then something outside this crate's types still uses
/// it: object and `keep` are leaked. So they are in a callback.
pub(crate) struct Handle<T: Object, K = ()> {
    raw: NonNull<T>,
    keep: ManuallyDrop<K>,
    /// Of an object that is an engine's to destroy.
    lender: Option<Arc<Lender>>,
}

impl<T: Object> Handle<T> {
    /// Takes what `create` returns through its out-parameter.
    pub(crate) fn create(create: impl FnOnce(*mut *mut T) -> i32) -> Result<Self> {
        Handle::create_keeping((), create)
    }
}

impl<T: Object, K> Handle<T, K> {
    pub(crate) fn create_keeping(keep: K, create: impl FnOnce(*mut *mut T) -> i32) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        check(create(&mut raw))?;
        let raw = NonNull::new(raw).expect("a call that succeeds gives an object");
        Ok(Handle { raw, keep: ManuallyDrop::new(keep), lender: None })
    }

    /// An object that an engine lends, if it has one.
    pub(crate) fn lent(raw: *mut T, keep: K, lender: &Arc<Lender>) -> Option<Self> {
        let (keep, lender) = (ManuallyDrop::new(keep), Some(Arc::clone(lender)));
        NonNull::new(raw).map(|raw| Handle { raw, keep, lender })
    }

    pub(crate) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    pub(crate) fn keep(&self) -> &K {
        &self.keep
    }

    pub(crate) fn keep_mut(&mut self) -> &mut K {
        &mut self.keep
    }

    /// As dropping it, but says what went wrong.
    pub(crate) fn close(self) -> Result<()> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so this is the only time.
        unsafe { this.destroy() }
    }

    /// # Safety
    /// To be called once.
    unsafe fn destroy(&mut self) -> Result<()> {
        if CALLED_BACK.try_with(Cell::get).unwrap_or(false) {
            return Err(Error::new(Status::Busy, "closed in a callback: it is leaked"));
        }
        let end = if self.lender.is_some() { T::LEAVE } else { Some(T::DESTROY) };
        if let Some(end) = end {
            // SAFETY: the handle is live, and this one owns it or was lent it.
            check(unsafe { end(self.raw.as_ptr()) })?;
        }
        // SAFETY: once, as the caller promises; the library uses it no more.
        unsafe { ManuallyDrop::drop(&mut self.keep) };
        self.lender = None;
        Ok(())
    }
}

impl<T: Object, K> Drop for Handle<T, K> {
    fn drop(&mut self) {
        // SAFETY: dropped once, and not after `close`.
        let _ = unsafe { self.destroy() };
    }
}

/// Has a child dropped before what it borrows for `'a`. Without this its drop would not count as a
/// use of its parents, which could then go first: the library refuses that, and they leak.
#[derive(Default)]
pub(crate) struct Outlived<'a>(PhantomData<&'a ()>);

impl Drop for Outlived<'_> {
    fn drop(&mut self) {}
}

/// A parent of an object: borrowed, or shared.
///
/// Whatever stands on another object takes it as `impl Into<Ref<..>>`. A plain reference ties the
/// lifetimes together, and costs nothing; an [`Arc`] makes the child `'static`, so that one struct
/// can own parents and children in any order.
#[derive(Debug)]
pub enum Ref<'a, T> {
    /// The child's lifetime ends before the parent's.
    Borrowed(&'a T),
    /// The parent lives as long as any child.
    Shared(Arc<T>),
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self {
            Ref::Borrowed(parent) => parent,
            Ref::Shared(parent) => parent,
        }
    }
}

impl<T> Clone for Ref<'_, T> {
    fn clone(&self) -> Self {
        match self {
            Ref::Borrowed(parent) => Ref::Borrowed(parent),
            Ref::Shared(parent) => Ref::Shared(Arc::clone(parent)),
        }
    }
}

impl<'a, T> From<&'a T> for Ref<'a, T> {
    fn from(parent: &'a T) -> Self {
        Ref::Borrowed(parent)
    }
}

impl<T> From<Arc<T>> for Ref<'_, T> {
    fn from(parent: Arc<T>) -> Self {
        Ref::Shared(parent)
    }
}

impl<T> From<&Arc<T>> for Ref<'_, T> {
    fn from(parent: &Arc<T>) -> Self {
        Ref::Shared(Arc::clone(parent))
    }
}

/// Gives a wrapper its `close`, for callers who want to know that all went well.
macro_rules! closes {
    ($($of:tt)*) => {
        impl $($of)* {
            /// Ends it, as dropping it does, and says whether all went well. What the library
            /// refuses to end, because something outside this crate's types still uses it, stays
            /// alive.
            pub fn close(self) -> Result<()> {
                self.handle.close()
            }
        }
    };
}
pub(crate) use closes;
