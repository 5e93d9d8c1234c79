//! What the library's callbacks reach: the waker of a future.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use atomic_waker::AtomicWaker;
use towline_sys as sys;

/// Each accepted post owns a reference, since the callback may come after another thread has seen the outcome and let go
/// of the post.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) waker: AtomicWaker,
}

/// `user_data` is a reference that `Arc::into_raw` gave; it is taken back here.
pub(crate) unsafe extern "C" fn ended(completion: *const sys::towline_completion_t) {
    // SAFETY: the library calls this exactly once for each accepted post.
    let shared = unsafe { Arc::from_raw((*completion).user_data.cast::<Shared>()) };
    // A waker is the application's code. A panic must not cross into C; there is nobody here to give it to.
    let _ = catch_unwind(AssertUnwindSafe(|| shared.waker.wake()));
}
