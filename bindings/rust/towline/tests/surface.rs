//! Named regions, selections, tags, queues, limits.

use std::time::{Duration, Instant};

use futures_lite::future::{block_on, zip};
use towline::{
    Access, Agent, EventKind, Fence, GroupOptions, Layout, Limit, Memory, Picks, PlanOptions, PostOptions, Queue,
    QueueOptions, Region, RegionOptions, Status, Timeout,
};

const PAGE: usize = 4096;
const LAYERS: usize = 4;
const PAGES: usize = 16;
const BYTES: usize = PAGE * LAYERS * PAGES;
const SOON: Duration = Duration::from_secs(30);

fn layout() -> Layout {
    Layout::packed(PAGE as u64, &[LAYERS as u64, PAGES as u64])
}

fn cache(agent: &Agent, fill: impl Fn(usize) -> u8) -> Region {
    let mut memory = Memory::allocate(BYTES).unwrap();
    for (page, bytes) in memory.as_mut_slice().chunks_mut(PAGE).enumerate() {
        bytes.fill(fill(page));
    }
    agent.register(memory, &RegionOptions::with_access(Access::ALL).named("kv", layout())).unwrap()
}

fn byte(region: &Region, page: usize) -> u8 {
    let mut bytes = vec![0; PAGE];
    region.read_at(page * PAGE, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

fn next(queue: &Queue) -> towline::Event {
    let mut events = queue.wait(SOON).unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    events.pop().unwrap()
}

#[test]
fn pages_of_every_layer_move_by_names_and_picks() {
    let (writer, owner) = (Agent::new("writer").unwrap(), Agent::new("owner").unwrap());
    let (source, target) = (cache(&writer, |page| page as u8 + 1), cache(&owner, |_| 0));
    let peer = writer.connect(&owner.address().unwrap(), SOON).unwrap();

    let info = peer.region("kv").unwrap();
    assert_eq!((info.bytes, info.readable), (BYTES as u64, true));
    assert_eq!(peer.region_name(info.key).unwrap(), "kv");
    let absent = peer.region_list("absent").unwrap_err();
    assert_eq!(absent.status(), Status::NOT_FOUND);
    assert!(absent.message().contains("kv"), "{absent}");

    let (mine, theirs) = (source.list().unwrap(), peer.region_list("kv").unwrap());
    assert_eq!(theirs.layout().unwrap().unwrap().counts(), layout().counts());
    let from = mine.select(&[Picks::All, (&[3, 5]).into()]).unwrap();
    let to = theirs.select(&[Picks::All, (&[7, 0]).into()]).unwrap();
    assert_eq!(from, [3, 5, 19, 21, 35, 37, 51, 53]);
    assert_eq!(mine.select(&[(1..2).into(), (0..0).into()]).unwrap(), []);
    let out_of_range = mine.select(&[Picks::All, (&[16]).into()]).unwrap_err();
    assert_eq!(out_of_range.status(), Status::OUT_OF_RANGE, "{out_of_range}");

    let plan = writer.plan(&mine, &theirs, &PlanOptions::default()).unwrap();
    let nothing = Picks::Range { start: 0, step: 0, count: 0 };
    let empty = plan.post(&PostOptions { from: nothing, to: nothing, ..Default::default() }).unwrap_err();
    assert_eq!(empty.status(), Status::INVALID_ARGUMENT, "{empty}");
    let pages = PostOptions { from: (&from).into(), to: (&to).into(), ..Default::default() };
    plan.post(&pages).unwrap().wait(SOON).unwrap();
    for layer in 0..LAYERS {
        assert_eq!(byte(&target, layer * PAGES + 7), (layer * PAGES + 3) as u8 + 1);
        assert_eq!(byte(&target, layer * PAGES), (layer * PAGES + 5) as u8 + 1);
        assert_eq!(byte(&target, layer * PAGES + 1), 0);
    }
}

#[test]
fn two_regions_of_one_name_are_refused() {
    let agent = Agent::new("agent").unwrap();
    let _first = cache(&agent, |_| 0);
    let options = RegionOptions::with_access(Access::ALL).named("kv", layout());
    let error = agent.register(Memory::allocate(BYTES).unwrap(), &options).unwrap_err();
    assert_eq!(error.status(), Status::ALREADY_EXISTS);
}

#[test]
fn a_queue_tells_of_posts_fences_and_tagged_notices() {
    let (writer, owner) = (Agent::new("writer").unwrap(), Agent::new("owner").unwrap());
    let (source, target) = (cache(&writer, |_| 9), cache(&owner, |_| 0));
    let peer = writer.connect(&owner.address().unwrap(), SOON).unwrap();
    let plan = writer.plan(&source.list().unwrap(), &peer.region_list("kv").unwrap(), &PlanOptions::default()).unwrap();

    let arrived = owner.queue(&QueueOptions { token: 77, ..Default::default() }).unwrap();
    arrived.subscribe(0x500, 0xff00).unwrap();
    let ended = writer.queue(&QueueOptions::default()).unwrap();
    let options = PostOptions { notice: b"all", tag: 0x512, queue: Some((&ended, u64::MAX)), ..Default::default() };
    let post = plan.post(&options).unwrap();
    let done = next(&ended);
    assert_eq!((done.kind(), done.token(), done.value()), (EventKind::DONE, u64::MAX, BYTES as u64));
    done.result().unwrap();

    let notice = next(&arrived);
    assert_eq!((notice.kind(), notice.token(), notice.tag()), (EventKind::NOTICE, 77, 0x512));
    assert_eq!(notice.bytes(), b"all");
    assert_eq!(notice.peer().unwrap().name(), "writer");
    assert_eq!(byte(&target, 0), 9);
    peer.send_tagged(0x600, b"to the agent's own queue").unwrap();
    assert_eq!(owner.receive(SOON).unwrap().bytes(), b"to the agent's own queue");

    post.tell_fenced(Fence::Both, &ended, 5).unwrap();
    let fenced = block_on(ended.wait_async()).unwrap();
    assert_eq!((fenced[0].kind(), fenced[0].token()), (EventKind::FENCED, 5));

    let wrong = PostOptions { queue: Some((&arrived, 1)), ..Default::default() };
    assert_eq!(plan.post(&wrong).map(drop).unwrap_err().status(), Status::INVALID_ARGUMENT);
}

#[test]
fn a_queue_tells_of_connections_counters_and_credit() {
    let (writer, owner) = (Agent::new("writer").unwrap(), Agent::new("owner").unwrap());
    let queue = writer.queue(&QueueOptions::default()).unwrap();
    writer.tell_connected(&owner.address().unwrap(), SOON, &queue, 1).unwrap();
    let connected = next(&queue);
    assert_eq!((connected.kind(), connected.token()), (EventKind::CONNECTED, 1));
    let peer = connected.peer().unwrap();
    peer.tell_credit(&queue, 2).unwrap();
    assert_eq!((next(&queue).kind(), peer.name()), (EventKind::CREDIT, "owner"));

    let counter = owner.counter(0).unwrap();
    let counts = owner.queue(&QueueOptions::default()).unwrap();
    counter.tell(3, &counts, 4).unwrap();
    peer.add(counter.key(), 3).unwrap();
    assert_eq!(next(&counts).value(), 3);

    writer.tell_connected("127.0.0.1:1", SOON, &queue, 5).unwrap();
    let refused = next(&queue);
    assert_eq!(refused.token(), 5);
    assert!(refused.error().contains("127.0.0.1:1"), "{}", refused.error());
    assert!(queue.wait(Timeout::NOW).unwrap().is_empty());
}

// One thread, one queue inside: each future gets its own answer, whichever of them takes it.
#[test]
fn many_futures_wait_at_once() {
    let (agent, owner) = (Agent::new("agent").unwrap(), Agent::new("owner").unwrap());
    let address = owner.address().unwrap();
    let counters: Vec<_> = (0..8).map(|_| owner.counter(0).unwrap()).collect();
    let peer = block_on(agent.connect_async(&address, SOON)).unwrap();
    let work = async {
        for (amount, counter) in counters.iter().enumerate().rev() {
            peer.add(counter.key(), amount as u64 + 1).unwrap();
        }
    };
    let executor = std::thread::scope(|scope| {
        let waits: Vec<_> = counters
            .iter()
            .enumerate()
            .map(|(amount, counter)| scope.spawn(move || block_on(counter.wait_async(amount as u64 + 1, SOON))))
            .collect();
        block_on(work);
        waits.into_iter().map(|wait| wait.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(executor.iter().all(Result::is_ok), "{executor:?}");
    let (refreshed, failed) = block_on(zip(peer.refresh_async(SOON), agent.connect_async("127.0.0.1:1", SOON)));
    refreshed.unwrap();
    assert_eq!(failed.unwrap_err().status(), Status::UNREACHABLE);
    let late = block_on(counters[0].wait_async(100, Duration::from_millis(10))).unwrap_err();
    assert_eq!(late.status(), Status::NOT_YET);
}

// All bytes at as many a second take a second; without the limit, no time that could be measured.
#[test]
fn a_limit_holds_for_the_agents_posts_and_a_group() {
    let (writer, owner) = (Agent::new("writer").unwrap(), Agent::new("owner").unwrap());
    let (source, _target) = (cache(&writer, |_| 9), cache(&owner, |_| 0));
    let peer = writer.connect(&owner.address().unwrap(), SOON).unwrap();
    let plan = writer.plan(&source.list().unwrap(), &peer.region_list("kv").unwrap(), &PlanOptions::default()).unwrap();
    writer.set_limit(Limit::ALL, BYTES as u64).unwrap();
    let began = Instant::now();
    plan.post(&PostOptions::default()).unwrap().wait(SOON).unwrap();
    assert!(began.elapsed() > Duration::from_millis(500), "{:?}", began.elapsed());
    writer.set_limit(Limit::ALL, 0).unwrap();
    peer.set_limit(1 << 40).unwrap();
    let group = writer.group(&GroupOptions::default()).unwrap();
    group.set_limit(1 << 40).unwrap();
    plan.post(&PostOptions { group: Some(&group), ..Default::default() }).unwrap();
    group.close().unwrap();
    group.wait(SOON).unwrap();
}
