//! Posts over memory of a GPU, which name a stream or say that they need none. The GPU is made of host memory.
//!
//! `CUDA_TEST_PLUGIN` is the file of its plugin; `scripts/run-rust-tests` sets it.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::time::Duration;

use futures_lite::future::block_on;
use towline::{
    Access, Agent, AgentOptions, Blocks, CudaStream, GroupOptions, Kind, Memory, MemoryOwner, Plan, PlanOptions,
    PostOptions, Region, RegionOptions, Status, Stream,
};

const PAGE: usize = 4096;
const BYTES: usize = 16 * PAGE;
const SOON: Duration = Duration::from_secs(20);

extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Command = unsafe extern "C" fn(*const c_char, *mut c_void, u64, u64, u64) -> u64;

/// A stream of the GPU, on which this test plays the application.
struct FakeStream {
    command: Command,
    stream: *mut c_void,
}

impl FakeStream {
    fn new(plugin: &str) -> FakeStream {
        let file = CString::new(plugin).unwrap();
        // SAFETY: the plugin has this function, and stays loaded.
        unsafe {
            let library = dlopen(file.as_ptr(), 2);
            assert!(!library.is_null(), "{plugin} can't be loaded");
            let found = dlsym(library, c"towline_fake_stream".as_ptr());
            assert!(!found.is_null());
            let command: Command = std::mem::transmute(found);
            let stream = command(c"make".as_ptr(), std::ptr::null_mut(), 0, 0, 0);
            FakeStream { command, stream: stream as *mut c_void }
        }
    }

    fn ask(&self, what: &CStr, a: u64, b: u64, c: u64) {
        // SAFETY: the stream lives until drop.
        unsafe { (self.command)(what.as_ptr(), self.stream, a, b, c) };
    }

    /// While it is held, the stream's work waits.
    fn hold(&self, held: bool) {
        self.ask(c"hold", held.into(), 0, 0);
    }

    fn copy(&self, to: u64, from: &[u8]) {
        self.ask(c"copy", to, from.as_ptr() as u64, from.len() as u64);
    }

    fn on(&self) -> Stream {
        // SAFETY: it lives until drop, after its posts.
        Stream::Cuda(unsafe { CudaStream::from_raw(self.stream) })
    }
}

impl Drop for FakeStream {
    fn drop(&mut self) {
        self.ask(c"free", 0, 0, 0);
    }
}

struct Pair {
    plan: Plan,
    source: Region,
    target: u64,
    writer: Agent,
    stream: FakeStream,
    _target: Region,
    _owner: Agent,
}

fn pair() -> Pair {
    let plugin = std::env::var("CUDA_TEST_PLUGIN").expect("CUDA_TEST_PLUGIN, as scripts/run-rust-tests sets it");
    let options = AgentOptions {
        listen: "127.0.0.1:0".into(),
        backends: "cuda".into(),
        config: format!("plugins = [\"{plugin}\"]\n[tuning.cuda]\ndirect = \"false\"\n"),
        ..Default::default()
    };
    let writer = Agent::with_options("writer", &options).unwrap();
    let owner = Agent::with_options("owner", &options).unwrap();
    let on_gpu = RegionOptions::with_access(Access::ALL).on(Kind::VRAM, 0);
    let source = writer.register(Memory::allocate(BYTES).unwrap(), &on_gpu).unwrap();
    let memory = Memory::allocate(BYTES).unwrap();
    let target = memory.address().as_ptr() as u64;
    let region = owner.register(memory, &on_gpu).unwrap();
    let peer = writer.connect(&owner.address().unwrap(), SOON).unwrap();
    let pages = |at| [Blocks::at(at, PAGE as u64).on(Kind::VRAM, 0).repeat((BYTES / PAGE) as u64, PAGE as u64)];
    let mine = writer.block_list(&pages(source.address())).unwrap();
    let theirs = peer.block_list(&pages(target)).unwrap();
    let plan = writer.plan(&mine, &theirs, &PlanOptions::default()).unwrap();
    Pair { plan, source, target, writer, stream: FakeStream::new(&plugin), _target: region, _owner: owner }
}

impl Pair {
    fn arrived(&self) -> Vec<u8> {
        // SAFETY: the GPU's memory is this process's, and no post runs.
        unsafe { std::slice::from_raw_parts(self.target as *const u8, BYTES) }.to_vec()
    }
}

#[test]
fn a_post_names_a_stream_or_says_that_it_needs_none() {
    let pair = pair();
    let refused = pair.plan.post(&PostOptions::default()).map(drop).unwrap_err();
    assert_eq!(refused.status(), Status::INVALID_ARGUMENT);
    assert!(refused.message().contains("the post names no stream"), "{refused}");
    let bytes = vec![7u8; BYTES];
    pair.stream.copy(pair.source.address(), &bytes);
    pair.stream.ask(c"drain", 0, 0, 0);
    let unordered = PostOptions { stream: Stream::Unordered, ..Default::default() };
    pair.plan.post(&unordered).unwrap().wait(SOON).unwrap();
    assert_eq!(pair.arrived(), bytes);
}

#[test]
fn a_post_in_a_stream_comes_after_its_work() {
    let pair = pair();
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    pair.stream.hold(true);
    pair.stream.copy(pair.source.address(), &bytes);
    let options = PostOptions { stream: pair.stream.on(), ..Default::default() };
    let post = pair.plan.post(&options).unwrap();
    assert_eq!(post.wait(Duration::from_millis(20)).unwrap_err().status(), Status::NOT_YET);
    assert_eq!(pair.arrived(), vec![0; BYTES], "it waits for the stream");
    pair.stream.hold(false);
    post.wait(SOON).unwrap();
    assert_eq!(pair.arrived(), bytes);
    block_on(pair.plan.run(&options)).unwrap();
}

#[test]
fn a_member_of_a_group_names_a_stream_too() {
    let pair = pair();
    let group = pair.writer.group(&GroupOptions::default()).unwrap();
    let member = |stream| pair.plan.post(&PostOptions { group: Some(&group), stream, ..Default::default() }).map(drop);
    member(pair.stream.on()).unwrap();
    assert_eq!(member(Stream::None).unwrap_err().status(), Status::INVALID_ARGUMENT);
    assert_eq!(group.wait(SOON).unwrap_err().status(), Status::INVALID_ARGUMENT);
}

#[test]
fn a_regions_gpu_memory_is_not_touched_by_the_processor() {
    let pair = pair();
    let refused = pair.source.read_at(0, &mut [0; 8]).unwrap_err();
    assert_eq!(refused.status(), Status::UNSUPPORTED);
    assert_eq!(pair.source.write_at(0, &[0; 8]).unwrap_err().status(), Status::UNSUPPORTED);
}
