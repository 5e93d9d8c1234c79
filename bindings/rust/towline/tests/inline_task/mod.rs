//! A task that the thread that wakes it runs at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

struct Inline(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let Some(mut task) = self.0.lock().unwrap().take() else { return };
        if task.as_mut().poll(&mut Context::from_waker(&Waker::from(self.clone()))).is_pending() {
            *self.0.lock().unwrap() = Some(task);
        }
    }
}

/// Begins it on this thread.
pub fn start(task: impl Future<Output = ()> + Send + 'static) {
    Arc::new(Inline(Mutex::new(Some(Box::pin(task))))).wake();
}
