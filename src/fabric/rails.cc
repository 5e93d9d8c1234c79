#include "fabric/rails.h"

#include "base/error.h"
#include "fabric/loopback/shared.h"
#include "fabric/ofi/ofi.h"
#include "fabric/topology.h"
#include "fabric/ucx/ucx.h"
#include "fabric/verbs/verbs.h"

namespace towline::fabric {
namespace {

std::unique_ptr<Domain> make_ofi(std::string_view rest) {
  OfiOptions options;
  if (const auto at = rest.find('@'); at != std::string_view::npos) {
    options.address = rest.substr(at + 1);
    rest = rest.substr(0, at);
  }
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    options.domain = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
  }
  options.provider = rest;
  return make_ofi_domain(options);
}

std::unique_ptr<Domain> make_ucx(std::string_view rest) {
  UcxOptions options;
  if (const auto mark = rest.find('?'); mark != std::string_view::npos) {
    options.variables = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
  }
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    options.devices = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
  }
  options.transports = rest;
  return make_ucx_domain(options);
}

struct Kind {
  std::string_view prefix;
  std::unique_ptr<Domain> (*make)(std::string_view rest);
};

constexpr Kind kKinds[] = {
    {"ofi:", make_ofi},
    {"verbs:", [](std::string_view rest) { return make_verbs_domain(parse_verbs_options(rest)); }},
    {"ucx:", make_ucx},
    {"loopback:", [](std::string_view rest) { return make_shared_loopback(std::string{rest}); }},
};

}  // namespace

std::unique_ptr<Domain> make_rail(std::string_view name) {
  for (const Kind& kind : kKinds)
    if (name.starts_with(kind.prefix) && name.size() > kind.prefix.size())
      return kind.make(name.substr(kind.prefix.size()));
  fail(Status::kInvalidArgument,
       "\"{}\" names no rail; write verbs:DEVICE[/PORT][?gid=INDEX], ofi:PROVIDER[/DEVICE][@ADDRESS], "
       "ucx:TRANSPORTS[/DEVICES][?NAME=VALUE+...] or loopback:NAME",
       name);
}

std::vector<std::unique_ptr<Domain>> make_rails(std::string_view name) {
  std::vector<std::unique_ptr<Domain>> rails;
  if (name != "auto") {
    rails.push_back(make_rail(name));
    return rails;
  }
  const RailChoice choice = choose_rails(read_rdma_ports());
  if (choice.rails.empty()) fail(Status::kUnsupported, "{} (rails can be named)", choice.reason);
  for (const std::string& rail : choice.rails) rails.push_back(make_rail(rail));
  return rails;
}

}  // namespace towline::fabric
