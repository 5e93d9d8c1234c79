//! One process sends pages of every layer of its cache to another one as the layers become ready. The regions have a name
//! and a layout, so that no address is sent by hand; the peer is told once, by a tag, after the last layer. Run it without
//! arguments: it starts its peer itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_lite::future::block_on;
use towline::{
    Access, Agent, GroupOptions, Layout, Memory, PlanOptions, PostOptions, QueueOptions, Region, RegionOptions, Result,
    Status,
};

const PAGE: usize = 4096;
const LAYERS: usize = 8;
const PAGES: usize = 64;
const REQUEST: u64 = 0x7000;
const SOON: Duration = Duration::from_secs(30);

fn cache(agent: &Agent, fill: u8) -> Result<Region> {
    let mut memory = Memory::allocate(PAGE * LAYERS * PAGES)?;
    memory.as_mut_slice().fill(fill);
    let layout = Layout::packed(PAGE as u64, &[LAYERS as u64, PAGES as u64]);
    agent.register(memory, &RegionOptions::with_access(Access::WRITE).named("kv", layout))
}

/// Owns the pages: prints its address, and waits for notices of requests.
fn decode() -> Result<()> {
    let agent = Agent::new("decode-0")?;
    let cache = cache(&agent, 0)?;
    let requests = agent.queue(&QueueOptions::default())?;
    requests.subscribe(REQUEST, !0xff)?;
    println!("{}", agent.address()?);
    let _ = std::io::stdout().flush();

    let arrived = block_on(requests.wait_async())?;
    let mut page = vec![0; PAGE];
    cache.read_at(40 * PAGE, &mut page)?;
    eprintln!(
        "request {} of {}: layer 0, page 40 is full of {}",
        arrived[0].tag() & 0xff,
        arrived[0].peer()?.name(),
        page[0]
    );
    assert!(page.iter().all(|byte| *byte == 7));
    Ok(())
}

/// Sends pages 3 and 5 of each layer to pages 40 and 41 there.
fn prefill(address: &str) -> Result<()> {
    let agent = Agent::new("prefill-0")?;
    let cache = cache(&agent, 7)?;
    let peer = block_on(agent.connect_async(address, SOON))?;
    let (mine, theirs) = (cache.list()?, peer.region_list("kv")?);
    let plan = agent.plan(&mine, &theirs, &PlanOptions::default())?;

    let ended = agent.queue(&QueueOptions::default())?;
    let group = agent.group(&GroupOptions { notice: b"all layers", tag: REQUEST + 17, ..Default::default() })?;
    for layer in 0..LAYERS as u64 {
        let from = mine.select(&[(layer..layer + 1).into(), (&[3, 5]).into()])?;
        let to = theirs.select(&[(layer..layer + 1).into(), (&[40, 41]).into()])?;
        let queue = Some((&ended, layer));
        let layer =
            PostOptions { from: (&from).into(), to: (&to).into(), group: Some(&group), queue, ..Default::default() };
        plan.post(&layer)?;
    }
    assert_ne!(group.close()?, Status::CANCELLED);
    block_on(group.done())?;
    let mut layers = 0;
    while layers < LAYERS {
        layers += ended.wait(SOON)?.len();
    }
    eprintln!("{layers} layers moved");
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("decode") {
        return Ok(decode()?);
    }
    let mut child =
        Command::new(std::env::current_exe()?).arg("decode").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    prefill(address.trim())?;
    if !child.wait()?.success() {
        return Err("the decode process failed".into());
    }
    Ok(())
}
