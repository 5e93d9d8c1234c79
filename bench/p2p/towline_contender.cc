// Towline's contenders, through the public header alone: mapped memory, process_vm on one thread and on two,
// the shared-memory ring and TCP. The initiator drives its own progress; the target is passive, its agent
// hosted.
#include <towline/towline.hpp>

#include <stdexcept>

#include "contender.h"
#include "target.h"

namespace bench {
namespace {

struct Style {
  std::string name;
  std::string backend;  // forced, so that a route taken for another reason can't pass for this one
  bool shared;          // the target's memory is Towline's own, which peers can map
  bool guarded;         // the target's agent checks every access: not mapped, not process_vm
  std::uint32_t threads;
  std::vector<std::string> limits;
  std::vector<std::string> peers;
};

const std::vector<Style> kStyles = {
    {"towline_mapped", "shm", true, false, 1, {"mapped"}, {"nixl"}},
    {"towline_pv", "shm", false, false, 1, {"pv"}, {"nixl"}},
    {"towline_pv2", "shm", false, false, 2, {"pv2"}, {"nixl"}},
    {"towline_ring", "shm", false, true, 1, {"ring"}, {"nixl"}},
    {"towline_tcp", "tcp", false, false, 1, {"tcp", "tcp4", "tcp_spin", "tcp4_spin"}, {"nixl_tcp"}}};

const Style* find_style(const std::string& name) {
  for (const Style& style : kStyles)
    if (style.name == name) return &style;
  return nullptr;
}

towline::AgentOptions agent_options(const Style& style, towline::Progress progress) {
  return {.progress = progress, .workers = style.threads, .listen = "127.0.0.1:0"};
}

class TowlineContender final : public PairedContender {
 public:
  TowlineContender(const Style& style, Session& session)
      : PairedContender(style.name, session), style_(style) {}

  std::vector<std::string> limits() const override { return style_.limits; }
  std::vector<std::string> peers() const override { return style_.peers; }
  void release() override { transfer_.reset(); }

 private:
  struct Ends {
    towline::Agent agent;
    towline::Region region;
    towline::Peer peer;
  };

  void connect(const Json& target) override {
    const auto progress = style_.threads > 1 ? towline::Progress::kHosted : towline::Progress::kCaller;
    towline::Agent agent("bench-initiator", agent_options(style_, progress));
    auto region = agent.register_memory(towline::dram(local(), span()), {.access = towline::Access::kAll});
    auto peer = agent.connect(target.at("agent"));
    remote_ = target.at("address");
    ends_.emplace(Ends{std::move(agent), std::move(region), std::move(peer)});
  }

  void prepare_cell() override {
    const std::size_t block = cell().block;
    const std::uint64_t blocks = span() / block;
    const auto here = ends_->agent.block_list(towline::Blocks::at(local(), block).repeat(blocks, block));
    const auto there = ends_->peer.block_list(towline::Blocks::at(remote_, block).repeat(blocks, block));
    const towline::PickedBlocks mine = here[lists().local];
    const towline::PickedBlocks theirs = there[lists().remote];
    const bool write = cell().op == Op::kWrite;
    transfer_.emplace(ends_->agent.transfer(write ? mine : theirs, write ? theirs : mine,
                                            {.backend = style_.backend, .workers = style_.threads}));
  }

  void run_once() override {
    towline::Status status = transfer_->post();
    while (status == towline::Status::kAgain) {
      ends_->agent.progress();
      status = transfer_->post();
    }
    while (status == towline::Status::kInProgress) status = transfer_->poll();
    if (status != towline::Status::kOk)
      throw std::runtime_error("transfer: " + std::string(towline::status_text(status)));
  }

  const Style& style_;
  std::uint64_t remote_ = 0;
  std::optional<Ends> ends_;
  std::optional<towline::Transfer> transfer_;  // last, so that it ends first
};

class TowlineResponder final : public Responder {
 public:
  TowlineResponder(const Style& style, TargetMemory& memory)
      : agent_("bench-target", agent_options(style, towline::Progress::kHosted)) {
    if (style.shared) shared_.emplace(memory.span);
    base_ = style.shared ? shared_->data() : memory.anonymous();
    region_.emplace(agent_.register_memory(towline::dram(base_, memory.span),
                                           {.access = towline::Access::kAll, .guarded = style.guarded}));
  }
  Json setup(const Json&) override {
    return {{"agent", agent_.address()}, {"address", reinterpret_cast<std::uint64_t>(base_)}};
  }
  std::byte* memory() override { return base_; }

 private:
  towline::Agent agent_;
  std::optional<towline::Memory> shared_;
  std::byte* base_ = nullptr;
  std::optional<towline::Region> region_;
};

}  // namespace

extern const Family kTowlineFamily = {
    [](Session& session, Contenders& out) {
      for (const Style& style : kStyles) out.push_back(std::make_unique<TowlineContender>(style, session));
    },
    [](const std::string& name, TargetMemory& memory) -> std::unique_ptr<Responder> {
      const Style* style = find_style(name);
      if (style == nullptr) return nullptr;
      return std::make_unique<TowlineResponder>(*style, memory);
    }};

}  // namespace bench
