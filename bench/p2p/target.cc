#include "target.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <map>
#include <stdexcept>

#include "contender.h"

namespace bench {
namespace {

class Target {
 public:
  explicit Target(std::size_t span) : memory_{span, {}, {}} {}

  Json handle(const Json& request, Channel& initiator) {
    const auto& verb = request.at("do").get_ref<const std::string&>();
    const auto& name = request.at("contender").get_ref<const std::string&>();
    if (verb == "setup") return make(name).setup(request);
    Responder& responder = *responders_.at(name);
    if (verb == "connect") return responder.connect(request);
    if (verb == "prepare") return prepare(responder, request);
    if (verb == "serve") {
      initiator.send({{"ready", true}});
      responder.serve(request.at("iterations"));
      return {{"served", true}};
    }
    if (verb == "stamp") {
      stamp_blocks(responder.memory(), lists_.remote, cell_.block, request.at("epoch"));
      return {{"stamped", true}};
    }
    if (verb == "verify")
      return {
          {"wrong", count_wrong_blocks(responder.memory(), lists_.remote, cell_.block, request.at("epoch"))}};
    throw std::invalid_argument("unknown request: " + verb);
  }

 private:
  Responder& make(const std::string& name) {
    for (const Family& family : families()) {
      auto responder = family.make_responder(name, memory_);
      if (responder) return *(responders_[name] = std::move(responder));
    }
    throw std::invalid_argument("no responder for " + name);
  }

  Json prepare(Responder& responder, const Json& request) {
    cell_ = {request.at("op") == "READ" ? Op::kRead : Op::kWrite, request.at("block"), request.at("count")};
    lists_ = make_lists(cell_, memory_.span);
    responder.prepare(cell_, lists_);
    return {{"prepared", true}};
  }

  TargetMemory memory_;
  std::map<std::string, std::unique_ptr<Responder>> responders_;
  Cell cell_;  // of the contender that was prepared last: valid for stamp and verify that follow
  BlockLists lists_;
};

}  // namespace

int run_target(std::size_t span) {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  Channel initiator(STDIN_FILENO, STDOUT_FILENO);
  Target target(span);
  for (;;) {
    Json request;
    try {
      request = initiator.receive();
    } catch (const std::exception&) {
      return 0;
    }
    try {
      initiator.send(target.handle(request, initiator));
    } catch (const std::exception& error) {
      initiator.send({{"error", error.what()}});
    }
  }
}

}  // namespace bench
