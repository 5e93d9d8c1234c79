//! Collectives: a communicator among ranks, which are processes or threads of one.

use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::time::Duration;

use towline_sys::{self as sys, Datatype, Reduction, Status};

use crate::agent::{Agent, AgentHandle};
use crate::deadline::Timeout;
use crate::error::{check, Error, Result};
use crate::text;

mod sealed {
    pub trait Sealed {}
}

/// Element types that collectives move and reduce.
pub trait Element: sealed::Sealed + Copy + Send + 'static {
    /// Its type in the library.
    const DATATYPE: Datatype;
}

macro_rules! elements {
    ($($type:ty: $name:ident),*) => {
        $(impl sealed::Sealed for $type {}
        impl Element for $type {
            const DATATYPE: Datatype = Datatype::$name;
        })*
    };
}
elements!(f32: FLOAT32, f64: FLOAT64, i8: INT8, u8: UINT8, i16: INT16, u16: UINT16, i32: INT32, u32: UINT32, i64: INT64, u64: UINT64);

/// Options of a communicator. Every rank gives the same name.
#[derive(Clone, Debug, Default)]
pub struct CommunicatorOptions {
    /// Default: "world".
    pub name: String,
    /// "cpu", "gpu", "fake" or a registered one. Default: "cpu".
    pub backend: String,
    /// Rank and size. Default: from torchrun's, MPI's or Slurm's environment.
    pub rank: Option<(i32, i32)>,
    /// The place where ranks meet: "tcp://host:port", "file:/path", "etcd://..". Default: MASTER_ADDR and MASTER_PORT.
    pub bootstrap: String,
    /// For a bootstrap by a directory.
    pub agent: Option<Agent>,
    /// The timeout of forming and of operations. Default: 600 s.
    pub timeout: Option<Duration>,
    /// TOML text over environment and file.
    pub config: String,
}

/// A communicator. Every rank calls the same operations in the same order. When a rank is lost, times out or disagrees, it
/// breaks as a whole: the operation in progress and every later one fail on every rank, with the same message.
pub struct Communicator {
    native: NonNull<sys::towline_communicator_t>,
    _agent: Option<AgentHandle>,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Communicator {}
unsafe impl Sync for Communicator {}

/// A communicator that is to end on another thread.
struct Leaving {
    native: NonNull<sys::towline_communicator_t>,
    _agent: Option<AgentHandle>,
}

// SAFETY: any thread may call any function of the C API.
unsafe impl Send for Leaving {}

impl Leaving {
    fn finish(self) {
        // SAFETY: freed once, here.
        unsafe { sys::towline_communicator_destroy(self.native.as_ptr()) };
    }
}

impl Drop for Communicator {
    /// Tells the other ranks that this one leaves.
    fn drop(&mut self) {
        // SAFETY: freed once: `BUSY` frees nothing.
        if unsafe { sys::towline_communicator_destroy(self.native()) } != Status::BUSY.0 {
            return;
        }
        // A waker that runs its task at once is a function of a work, in which it can't end: another thread ends it.
        let leaving = Leaving { native: self.native, _agent: self._agent.take() };
        let _ = std::thread::Builder::new().name("towline-leave".into()).spawn(move || leaving.finish());
    }
}

impl Communicator {
    /// Waits until all ranks have arrived. `TIMED_OUT` names those that have not.
    pub fn new(options: &CommunicatorOptions) -> Result<Communicator> {
        let name = text::optional("the communicator's name", &options.name)?;
        let backend = text::optional("backend", &options.backend)?;
        let bootstrap = text::optional("bootstrap", &options.bootstrap)?;
        let config = text::optional("config", &options.config)?;
        let (rank, size) = options.rank.unwrap_or_default();
        let agent = options.agent.as_ref().map(|agent| agent.handle().clone());
        let native = sys::towline_communicator_options_t {
            struct_size: size_of::<sys::towline_communicator_options_t>(),
            name: text::pointer(&name),
            backend: text::pointer(&backend),
            rank,
            size,
            bootstrap: text::pointer(&bootstrap),
            agent: agent.as_ref().map_or(ptr::null_mut(), |agent| agent.native()),
            timeout_ns: options.timeout.map_or(0, |time| Timeout::from(time).nanoseconds_not_default()),
            config: text::pointer(&config),
            ..Default::default()
        };
        let mut made = ptr::null_mut();
        // SAFETY: every pointer outlives the call; `made` is written on success only.
        check(unsafe { sys::towline_communicator_create(&native, &mut made) })?;
        // SAFETY: a successful call gives a handle.
        Ok(Communicator { native: unsafe { NonNull::new_unchecked(made) }, _agent: agent })
    }

    /// This process's rank.
    pub fn rank(&self) -> i32 {
        // SAFETY: the handle is valid.
        unsafe { sys::towline_communicator_rank(self.native()) }
    }

    /// How many ranks there are.
    pub fn size(&self) -> i32 {
        // SAFETY: the handle is valid.
        unsafe { sys::towline_communicator_size(self.native()) }
    }

    /// Backend, ranks with hosts, how each is reached, thresholds: JSON.
    pub fn info(&self) -> Result<String> {
        // SAFETY: buffer and capacity belong together.
        text::read_text(|buffer, capacity, needed| unsafe {
            sys::towline_communicator_info(self.native(), buffer.cast(), capacity, needed)
        })
    }

    /// A communicator of some of the ranks, in this order. Every rank calls it, with the members of its own group.
    pub fn split(&self, ranks: &[i32], name: &str) -> Result<Option<Communicator>> {
        let name = text::optional("the communicator's name", name)?;
        let mut made = ptr::null_mut();
        // SAFETY: the ranks outlive the call; `made` is written on success only.
        check(unsafe {
            let (name, count) = (text::pointer(&name), ranks.len());
            sys::towline_communicator_split(self.native(), ranks.as_ptr(), count, name, 0, &mut made)
        })?;
        Ok(NonNull::new(made).map(|native| Communicator { native, _agent: self._agent.clone() }))
    }

    /// Breaks the communicator on every rank.
    pub fn abort(&self, reason: &str) -> Result<()> {
        let reason = text::owned("the reason", reason)?;
        // SAFETY: the text outlives the call.
        check(unsafe { sys::towline_communicator_abort(self.native(), reason.as_ptr()) }).map(drop)
    }

    /// Waits until every rank has come.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: no buffers.
        check(unsafe { sys::towline_barrier(self.native(), ptr::null(), ptr::null_mut()) }).map(drop)
    }

    /// Reduces the ranks' buffers element by element; each gets the result in place.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], reduction: Reduction) -> Result<()> {
        let place = buffer.as_mut_ptr();
        self.perform::<T>(sys::TOWLINE_COLLECTIVE_ALL_REDUCE, buffer.len(), place, place, reduction, 0)
    }

    /// The same at one rank alone; the buffers of the others stay as they are.
    pub fn reduce<T: Element>(&self, buffer: &mut [T], reduction: Reduction, root: i32) -> Result<()> {
        let place = buffer.as_mut_ptr();
        self.perform::<T>(sys::TOWLINE_COLLECTIVE_REDUCE, buffer.len(), place, place, reduction, root)
    }

    /// The root's buffer comes to every rank.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: i32) -> Result<()> {
        let place = buffer.as_mut_ptr();
        self.perform::<T>(sys::TOWLINE_COLLECTIVE_BROADCAST, buffer.len(), place, place, Reduction::SUM, root)
    }

    /// Each rank gets the inputs of all, in order of ranks.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.check_parts("all_gather", "output", output.len(), input.len())?;
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        self.perform::<T>(sys::TOWLINE_COLLECTIVE_ALL_GATHER, input.len(), from, to, Reduction::SUM, 0)
    }

    /// Each rank gets its part of the reduced inputs.
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], reduction: Reduction) -> Result<()> {
        self.check_parts("reduce_scatter", "input", input.len(), output.len())?;
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        self.perform::<T>(sys::TOWLINE_COLLECTIVE_REDUCE_SCATTER, output.len(), from, to, reduction, 0)
    }

    /// Part i of the input goes to rank i; part i of the output comes from it.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let part = input.len() / self.size().max(1) as usize;
        self.check_parts("all_to_all", "input", input.len(), part)?;
        self.check_parts("all_to_all", "output", output.len(), part)?;
        let (from, to) = (input.as_ptr(), output.as_mut_ptr());
        self.perform::<T>(sys::TOWLINE_COLLECTIVE_ALL_TO_ALL, part, from, to, Reduction::SUM, 0)
    }

    /// Sends to a rank. Messages of one pair match by tag, in order.
    pub fn send<T: Element>(&self, buffer: &[T], to: i32, tag: u64) -> Result<()> {
        let (place, count) = (buffer.as_ptr().cast(), buffer.len() as u64);
        // SAFETY: the buffer outlives the operation, which is over when the call returns.
        check(unsafe {
            sys::towline_send(self.native(), place, count, T::DATATYPE.0, to, tag, ptr::null(), ptr::null_mut())
        })
        .map(drop)
    }

    /// Receives from a rank.
    pub fn recv<T: Element>(&self, buffer: &mut [T], from: i32, tag: u64) -> Result<()> {
        let (place, count) = (buffer.as_mut_ptr().cast(), buffer.len() as u64);
        // SAFETY: as for `send`.
        check(unsafe {
            sys::towline_recv(self.native(), place, count, T::DATATYPE.0, from, tag, ptr::null(), ptr::null_mut())
        })
        .map(drop)
    }

    // Every caller passes buffers of the size that the operation needs, which outlive it: no rank uses them once the call
    // has returned.
    fn perform<T: Element>(
        &self,
        op: u32,
        count: usize,
        input: *const T,
        output: *mut T,
        reduction: Reduction,
        root: i32,
    ) -> Result<()> {
        let call = sys::towline_collective_t {
            struct_size: size_of::<sys::towline_collective_t>(),
            op,
            datatype: T::DATATYPE.0,
            reduction: reduction.0,
            root,
            count: count as u64,
            input: input.cast(),
            output: output.cast(),
            ..Default::default()
        };
        // SAFETY: as above.
        check(unsafe { sys::towline_collective(self.native(), &call, ptr::null(), ptr::null_mut()) }).map(drop)
    }

    fn check_parts(&self, what: &str, side: &str, length: usize, part: usize) -> Result<()> {
        let wanted = part.checked_mul(self.size().max(1) as usize);
        if wanted == Some(length) {
            return Ok(());
        }
        let size = self.size();
        let text =
            format!("{what}: the {side} has {length} elements; a part of {part} for each of {size} ranks is needed");
        Err(Error::new(Status::INVALID_ARGUMENT, text))
    }

    fn native(&self) -> *mut sys::towline_communicator_t {
        self.native.as_ptr()
    }

    /// Starts to reduce the ranks' vectors, beside the application. The work owns the vector meanwhile.
    pub fn start_all_reduce<T: Element>(&self, mut buffer: Vec<T>, reduction: Reduction) -> Result<Work<T>> {
        let (place, count) = (buffer.as_mut_ptr(), buffer.len() as u64);
        let mut work = ptr::null_mut();
        // SAFETY: the work keeps the vector, whose allocation does not move, until the operation has ended.
        check(unsafe {
            let (kind, how) = (T::DATATYPE.0, reduction.0);
            let buffer = place.cast();
            sys::towline_all_reduce(self.native(), place.cast(), buffer, count, kind, how, ptr::null(), &mut work)
        })?;
        Ok(Work::new(work, buffer))
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Communicator").field("rank", &self.rank()).field("size", &self.size()).finish()
    }
}

pub use work::Work;

mod work {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Poll;

    use super::*;
    use crate::wake::Shared;

    /// An operation that runs beside the application, with its buffer. Dropped, it goes on; its end frees the buffer.
    pub struct Work<T: Element> {
        native: NonNull<sys::towline_work_t>,
        buffer: Option<Vec<T>>,
    }

    // SAFETY: any thread may call any function of the C API.
    unsafe impl<T: Element> Send for Work<T> {}
    unsafe impl<T: Element> Sync for Work<T> {}

    impl<T: Element> Work<T> {
        pub(super) fn new(work: *mut sys::towline_work_t, buffer: Vec<T>) -> Work<T> {
            // SAFETY: a successful call gives a handle.
            Work { native: unsafe { NonNull::new_unchecked(work) }, buffer: Some(buffer) }
        }

        /// Waits for the outcome, which comes by the operation's own timeout, and gives the buffer back.
        pub fn wait(mut self) -> Result<Vec<T>> {
            // SAFETY: the handle is valid.
            check(unsafe { sys::towline_work_wait_blocking(self.native.as_ptr(), u64::MAX) })?;
            Ok(self.buffer.take().unwrap_or_default())
        }

        /// The same without blocking the thread.
        pub async fn done(mut self) -> Result<Vec<T>> {
            let shared = Arc::new(Shared::default());
            self.wake_at_end(&shared)?;
            let status = poll_fn(|context| {
                shared.waker.register(context.waker());
                match self.poll() {
                    Status::IN_PROGRESS => Poll::Pending,
                    status => Poll::Ready(status),
                }
            })
            .await;
            if status.is_error() {
                // SAFETY: valid as long as the work.
                let text = unsafe { text::lossy(sys::towline_work_error(self.native.as_ptr())) };
                return Err(Error::new(status, text));
            }
            Ok(self.buffer.take().unwrap_or_default())
        }

        // No raw pointer may live across an await, so this is a step of its own.
        fn wake_at_end(&self, shared: &Arc<Shared>) -> Result<()> {
            let context = Arc::into_raw(shared.clone()).cast_mut().cast();
            // SAFETY: the function takes the reference back, once; a refused call takes none.
            check(unsafe { sys::towline_work_on(self.native.as_ptr(), END, Some(wake), context) })
                .map(drop)
                .inspect_err(|_| unsafe { Arc::decrement_strong_count(Arc::as_ptr(shared)) })
        }

        /// `IN_PROGRESS` or the outcome.
        pub fn poll(&self) -> Status {
            // SAFETY: the handle is valid.
            Status(unsafe { sys::towline_work_poll(self.native.as_ptr()) })
        }
    }

    const END: u32 = sys::TOWLINE_WORK_END;

    unsafe extern "C" fn wake(context: *mut std::ffi::c_void, _: *mut sys::towline_work_t) {
        // SAFETY: called once with the reference that `wake_at_end` gave.
        let shared = unsafe { Arc::from_raw(context.cast::<Shared>()) };
        // A waker is the application's code, and a panic must not cross into C.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| shared.waker.wake()));
    }

    unsafe extern "C" fn free<T>(context: *mut std::ffi::c_void, _: *mut sys::towline_work_t) {
        // SAFETY: called once with the box that `drop` gave.
        drop(unsafe { Box::from_raw(context.cast::<Vec<T>>()) });
    }

    impl<T: Element> Drop for Work<T> {
        fn drop(&mut self) {
            if let Some(buffer) = self.buffer.take() {
                if self.poll() == Status::IN_PROGRESS {
                    let context = Box::into_raw(Box::new(buffer)).cast();
                    // SAFETY: the function frees the box once. Where it can't be set, the box is leaked: ranks use it.
                    unsafe { sys::towline_work_on(self.native.as_ptr(), END, Some(free::<T>), context) };
                }
            }
            // SAFETY: released once.
            unsafe { sys::towline_work_release(self.native.as_ptr()) };
        }
    }
}

/// Rank and size from the environment, as a communicator without `rank` reads them.
pub fn rank_and_size() -> Result<(i32, i32)> {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: both are written on success only.
    check(unsafe { sys::towline_collective_environment(ptr::null(), &mut rank, &mut size) })?;
    Ok((rank, size))
}
