#include "peer.h"

namespace bench {
namespace {

using Environment = std::map<std::string, std::string>;

class NixlContender final : public Contender {
 public:
  NixlContender(std::string name, const std::string& python, const std::string& script, std::size_t span,
                Environment environment)
      : Contender(std::move(name)),
        python_(python),
        script_(script),
        span_(span),
        environment_(std::move(environment)) {}

  void setup() override {
    target_ = start("target");
    initiator_ = start("initiator");
    const Json theirs = target_->ask({{"do", "setup"}, {"span", span_}});
    const Json ours = initiator_->ask({{"do", "setup"}, {"span", span_}});
    target_->ask({{"do", "connect"}, {"metadata", ours.at("metadata")}, {"address", ours.at("address")}});
    initiator_->ask(
        {{"do", "connect"}, {"metadata", theirs.at("metadata")}, {"address", theirs.at("address")}});
  }

  void prepare(const Cell& cell, const BlockLists& lists) override {
    op_ = cell.op;
    const Json request = {{"do", "prepare"},
                          {"op", cell.op_name()},
                          {"block", cell.block},
                          {"local", lists.local},
                          {"remote", lists.remote}};
    target_->ask(request);
    target_->ask({{"do", "serve"}});
    initiator_->ask(request);
    target_->ask({{"do", "rest"}});
  }

  double run(std::uint64_t iterations) override {
    target_->ask({{"do", "serve"}});
    const Json answer = initiator_->ask({{"do", "run"}, {"iterations", iterations}});
    target_->ask({{"do", "rest"}});
    return answer.at("seconds");
  }

  void release() override { initiator_->ask({{"do", "release"}}); }

  void stamp_source(std::uint64_t epoch) override {
    (op_ == Op::kWrite ? initiator_ : target_)->ask({{"do", "stamp"}, {"epoch", epoch}});
  }

  std::size_t verify(std::uint64_t epoch) override {
    return (op_ == Op::kWrite ? target_ : initiator_)->ask({{"do", "verify"}, {"epoch", epoch}}).at("wrong");
  }

 private:
  std::unique_ptr<ChildProcess> start(const std::string& role) {
    return std::make_unique<ChildProcess>(std::vector<std::string>{python_, script_, role}, environment_);
  }

  std::string python_;
  std::string script_;
  std::size_t span_;
  Environment environment_;
  Op op_ = Op::kWrite;
  std::unique_ptr<ChildProcess> target_;
  std::unique_ptr<ChildProcess> initiator_;
};

}  // namespace

void add_nixl(const std::string& python, const std::string& script, std::size_t span, Contenders& out) {
  const Environment shared_memory = {
      {"NIXL_LOG_LEVEL", "WARN"}, {"UCX_MODULES", "^ib,cuda"}, {"UCX_TLS", "shm,self"}};
  const Environment tcp = {{"NIXL_LOG_LEVEL", "WARN"},
                           {"UCX_MODULES", "^ib,cuda"},
                           {"UCX_TLS", "tcp"},
                           {"UCX_TCP_TX_SEG_SIZE", "256k"},
                           {"UCX_TCP_RX_SEG_SIZE", "256k"}};
  out.push_back(std::make_unique<NixlContender>("nixl", python, script, span, shared_memory));
  out.push_back(std::make_unique<NixlContender>("nixl_tcp", python, script, span, tcp));
}

}  // namespace bench
