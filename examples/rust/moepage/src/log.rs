//! The log callback.
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use moepage_sys as sys;

use crate::banks::drop_quietly;
use crate::handle::called_back;
use crate::types::text_at;

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// A fallback was taken.
    Warning,
    /// Worth knowing.
    Info,
}

/// Receives messages worth an operator's eye, on any thread of the library. It must not call back
/// into the library. A panic in it is caught and dropped: nobody is there to take it.
pub type Logger = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// Where the library's pointer goes: an address that stays when this is moved.
#[derive(Clone)]
pub(crate) struct Log(Option<Arc<Logger>>);

impl Log {
    pub(crate) fn new(logger: Option<Logger>) -> Self {
        Log(logger.map(Arc::new))
    }

    pub(crate) fn function(&self) -> sys::moepage_log_fn {
        self.0.as_ref().map(|_| forward as _)
    }

    pub(crate) fn user(&self) -> *mut c_void {
        self.0.as_ref().map_or(std::ptr::null_mut(), |logger| Arc::as_ptr(logger) as *mut c_void)
    }
}

unsafe extern "C" fn forward(user: *mut c_void, level: i32, text: *const c_char) {
    let level = match level {
        sys::MOEPAGE_LOG_ERROR => LogLevel::Error,
        sys::MOEPAGE_LOG_WARNING => LogLevel::Warning,
        _ => LogLevel::Info,
    };
    // SAFETY: `user` is what `Log::user` gave, which lives as long as the object that logs.
    let logger = unsafe { &*(user as *const Logger) };
    // SAFETY: NUL-terminated and borrowed for this call.
    let text = unsafe { text_at(text) };
    called_back(|| drop_quietly(catch_unwind(AssertUnwindSafe(|| logger(level, text)))));
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn log_messages_arrive_and_panics_stay_here() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&seen);
        let log = Log::new(Some(Box::new(move |level, text| {
            to.lock().unwrap().push((level, text.to_owned()));
            if level == LogLevel::Error {
                resume_unwind(Box::new(()));
            }
        })));
        let (function, user) = (log.function().unwrap(), log.user());
        let moved = [log];
        for level in [sys::MOEPAGE_LOG_ERROR, sys::MOEPAGE_LOG_WARNING, sys::MOEPAGE_LOG_INFO] {
            let text = b"pages are small\0".as_ptr().cast();
            // SAFETY: as the library calls it: the log lives, the text ends.
            unsafe { function(user, level, text) };
        }
        drop(moved);
        let levels = [LogLevel::Error, LogLevel::Warning, LogLevel::Info];
        assert_eq!(*seen.lock().unwrap(), levels.map(|l| (l, "pages are small".to_owned())));
        assert_eq!(Arc::strong_count(&seen), 1);
        assert!(Log::new(None).function().is_none() && Log::new(None).user().is_null());
    }
}
