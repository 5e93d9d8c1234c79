//! Posts and notices as futures, with and without a runtime.

mod inline_task;

use std::future::Future;
use std::pin::pin;
use std::sync::{mpsc, Arc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_lite::future::{block_on, zip};
use towline::{
    Access, Agent, BlockList, Blocks, Memory, Peer, Plan, PlanOptions, PostOptions, Region, RegionOptions, Status,
};

const PAGE: u64 = 4096;
const PAGES: u64 = 1024;
const SOON: Duration = Duration::from_secs(10);

struct Pair {
    _source: Region,
    target: Region,
    mine: BlockList,
    theirs: BlockList,
    peer: Peer,
    writer: Agent,
    owner: Agent,
}

async fn pair() -> Pair {
    let writer = Agent::new("writer").unwrap();
    let owner = Agent::new("owner").unwrap();
    let mut memory = Memory::allocate((PAGE * PAGES) as usize).unwrap();
    memory.as_mut_slice().fill(9);
    let source = writer.register(memory, &RegionOptions::with_access(Access::ALL)).unwrap();
    let target = owner
        .register(Memory::allocate((PAGE * PAGES) as usize).unwrap(), &RegionOptions::with_access(Access::ALL))
        .unwrap();
    let peer = writer.connect_async(&owner.address().unwrap(), SOON).await.unwrap();
    let pages = |address| [Blocks::at(address, PAGE).repeat(PAGES, PAGE)];
    let mine = writer.block_list(&pages(source.address())).unwrap();
    let theirs = peer.block_list(&pages(target.address())).unwrap();
    Pair { _source: source, target, mine, theirs, peer, writer, owner }
}

impl Pair {
    fn plan(&self, backend: &str) -> Plan {
        let options = PlanOptions { backend: backend.into(), ..Default::default() };
        self.writer.plan(&self.mine, &self.theirs, &options).unwrap()
    }
}

async fn write_and_receive(pair: &Pair) {
    let plan = pair.plan("");
    let write = PostOptions { notice: b"done", ..Default::default() };
    for _ in 0..50 {
        let (written, notice) = zip(plan.run(&write), pair.owner.receive_async()).await;
        written.unwrap();
        assert_eq!(notice.unwrap().bytes(), b"done");
    }
    let mut last = [0];
    pair.target.read_at((PAGE * PAGES - 1) as usize, &mut last).unwrap();
    assert_eq!(last, [9]);
}

#[test]
fn posts_and_notices_are_futures_without_a_runtime() {
    block_on(async { write_and_receive(&pair().await).await });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_under_tokio_from_many_tasks() {
    let pair = pair().await;
    let plan = pair.plan("");
    let tasks: Vec<_> = (0..16u64)
        .map(|task| {
            let plan = plan.clone();
            tokio::spawn(async move {
                let pages = task * 64..(task + 1) * 64;
                let write = PostOptions { from: pages.clone().into(), to: pages.into(), ..Default::default() };
                for _ in 0..20 {
                    plan.run(&write).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut bytes = vec![0; (PAGE * PAGES) as usize];
    pair.target.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 9));
}

#[test]
fn dropping_the_future_cancels_the_post() {
    block_on(async {
        let pair = pair().await;
        let plan = pair.plan("tcp");
        let counter = pair.owner.counter(0).unwrap();
        let write = PostOptions { count: Some((counter.key(), 1)), ..Default::default() };
        let done = {
            let mut future = pin!(plan.run(&write));
            let mut context = Context::from_waker(Waker::noop());
            future.as_mut().poll(&mut context).is_ready()
        };
        plan.run(&write).await.unwrap(); // and it can be posted again
        drop(plan);
        let Pair { _source: source, .. } = pair;
        source.deregister_async(SOON).await.map_err(|(_, error)| error).unwrap();
        let told = counter.value();
        assert!(told == 1 || told == 2, "{told} of the first, done: {done}, and the second");
    });
}

#[test]
fn waiting_for_a_counter_and_leaving_do_not_block_the_thread() {
    block_on(async {
        let pair = pair().await;
        let counter = pair.owner.counter(0).unwrap();
        let add = async { pair.peer.add(counter.key(), 3) };
        let (waited, added) = zip(counter.wait_async(3, SOON), add).await;
        waited.unwrap();
        added.unwrap();
        pair.peer.refresh_async(SOON).await.unwrap();
        drop(pair.theirs);
        pair.target.deregister_async(SOON).await.map_err(|(_, error)| error).unwrap();
    });
}

/// A waker that panics: the application's mistake, which must not cross into C.
struct Broken;

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        panic!("the application's waker is broken");
    }
}

#[test]
fn a_waker_that_panics_does_not_end_the_process() {
    block_on(async {
        let pair = pair().await;
        let plan = pair.plan("tcp");
        let counter = pair.owner.counter(0).unwrap();
        {
            let write = PostOptions { count: Some((counter.key(), 1)), ..Default::default() };
            let waker = Waker::from(Arc::new(Broken));
            let mut future = pin!(plan.run(&write));
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                result.unwrap();
            }
            counter.wait(1, SOON).unwrap(); // it went on, and the waker was called
        }
        plan.run(&PostOptions::default()).await.unwrap();
    });
}

/// Half of it is more than the queue of an agent's futures holds.
const MANY: usize = 40_000;

#[test]
fn waits_for_a_counter_that_are_dropped_leave_room_for_others() {
    let agent = Agent::new("agent").unwrap();
    let counter = agent.counter(0).unwrap();
    for number in 0..MANY {
        let mut wait = pin!(counter.wait_async(1, SOON));
        if number % 2 == 0 {
            assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
    }
    let late = block_on(counter.wait_async(1, Duration::from_millis(1))).unwrap_err();
    assert_eq!(late.status(), Status::NOT_YET, "{late}");
}

#[test]
fn refreshes_that_are_dropped_leave_room_for_others() {
    let (agent, owner) = (Agent::new("agent").unwrap(), Agent::new("owner").unwrap());
    let peer = agent.connect(&owner.address().unwrap(), SOON).unwrap();
    for _ in 0..MANY {
        drop(peer.refresh_async(SOON));
    }
    let until = std::time::Instant::now() + 3 * SOON;
    while let Err(error) = block_on(peer.refresh_async(SOON)) {
        assert_eq!(error.status(), Status::AGAIN, "{error}"); // as long as the first ones are under way
        assert!(std::time::Instant::now() < until, "{error}");
    }
}

#[test]
fn the_last_handle_of_an_agent_can_end_on_a_thread_of_the_agent() {
    let owner = Agent::new("owner").unwrap();
    let bytes = 64 << 20; // so that the waker is there before the end
    let target = owner.register(Memory::allocate(bytes).unwrap(), &RegionOptions::with_access(Access::ALL)).unwrap();
    for backend in ["tcp", "shm"] {
        let writer = Agent::new("writer").unwrap();
        let source = writer.register(Memory::allocate(bytes).unwrap(), &RegionOptions::default()).unwrap();
        let peer = writer.connect(&owner.address().unwrap(), SOON).unwrap();
        let mine = writer.block_list(&[Blocks::at(source.address(), bytes as u64)]).unwrap();
        let theirs = peer.block_list(&[Blocks::at(target.address(), bytes as u64)]).unwrap();
        let options = PlanOptions { backend: backend.into(), ..Default::default() };
        let plan = writer.plan(&mine, &theirs, &options).unwrap();
        let (told, ended) = mpsc::channel();
        let task = async move {
            let written = plan.run(&PostOptions::default()).await;
            drop((plan, mine, theirs, peer, source, writer));
            told.send(written).unwrap();
        };
        inline_task::start(task);
        ended.recv_timeout(SOON).unwrap().unwrap();
    }
}
