//! Statuses as errors that carry the library's sentence.
use std::ffi::CStr;
use std::fmt;

use moepage_sys as sys;

/// What went wrong, as `docs/errors.md` describes for each: what to do, and what remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// An argument is out of its documented range.
    Argument,
    /// The call is out of order for this object.
    State,
    /// A stale, foreign or wrong-type handle or sequence.
    Handle,
    /// Other objects, open plans or steps still depend on this one.
    Busy,
    /// Host memory could not be allocated.
    NoMemory,
    /// The device budget cannot hold what was asked for.
    Budget,
    /// The KV pool has too few free blocks; nothing was taken.
    WouldNotFit,
    /// No such file, tensor, device, policy or decoder.
    NotFound,
    /// The operating system failed a read, write or map.
    Io,
    /// A file is malformed, truncated or contradicts itself.
    Format,
    /// Well-formed, but not something this build or device can do.
    Unsupported,
    /// A file or struct is from an incompatible version.
    Version,
    /// A caller's callback reported failure, or panicked.
    Callback,
    /// The device failed; its handle is poisoned.
    Device,
    /// A status that a later library added.
    Other(i32),
}

const STATUSES: [(i32, Status); 14] = [
    (sys::MOEPAGE_E_ARGUMENT, Status::Argument),
    (sys::MOEPAGE_E_STATE, Status::State),
    (sys::MOEPAGE_E_HANDLE, Status::Handle),
    (sys::MOEPAGE_E_BUSY, Status::Busy),
    (sys::MOEPAGE_E_NO_MEMORY, Status::NoMemory),
    (sys::MOEPAGE_E_BUDGET, Status::Budget),
    (sys::MOEPAGE_E_WOULD_NOT_FIT, Status::WouldNotFit),
    (sys::MOEPAGE_E_NOT_FOUND, Status::NotFound),
    (sys::MOEPAGE_E_IO, Status::Io),
    (sys::MOEPAGE_E_FORMAT, Status::Format),
    (sys::MOEPAGE_E_UNSUPPORTED, Status::Unsupported),
    (sys::MOEPAGE_E_VERSION, Status::Version),
    (sys::MOEPAGE_E_CALLBACK, Status::Callback),
    (sys::MOEPAGE_E_DEVICE, Status::Device),
];

impl Status {
    /// The `MOEPAGE_E_*` number.
    pub fn code(self) -> i32 {
        match self {
            Status::Other(code) => code,
            known => STATUSES
                .iter()
                .find(|entry| entry.1 == known)
                .map_or(sys::MOEPAGE_E_ARGUMENT, |entry| entry.0),
        }
    }

    /// The library's fixed short text.
    pub fn text(self) -> &'static str {
        // SAFETY: takes any number; the text is static and never NULL.
        let text = unsafe { CStr::from_ptr(sys::moepage_status_text(self.code())) };
        text.to_str().unwrap_or("unknown status")
    }
}

impl From<i32> for Status {
    fn from(code: i32) -> Self {
        STATUSES.iter().find(|entry| entry.0 == code).map_or(Status::Other(code), |entry| entry.1)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A failed call: its status, and one sentence that names the value at fault.
///
/// A failed call has changed nothing, unless its documentation says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    text: String,
}

/// What calls of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Error { status, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Error::new(Status::Argument, text)
    }

    /// The failure of the call that this thread made last.
    pub(crate) fn last(status: i32) -> Self {
        // SAFETY: never NULL, and valid until this thread's next failing call.
        let text = unsafe { CStr::from_ptr(sys::moepage_last_error()) };
        Error::new(status.into(), text.to_string_lossy())
    }

    pub(crate) fn followed_by(mut self, more: &str) -> Self {
        self.text.push_str(": ");
        self.text.push_str(more);
        self
    }

    /// What kind of failure it was.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The sentence.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.text)
    }
}

impl std::error::Error for Error {}

/// Turns the status of a call that this thread has just made into a result.
pub(crate) fn check(status: i32) -> Result<()> {
    if status == sys::MOEPAGE_OK {
        Ok(())
    } else {
        Err(Error::last(status))
    }
}
