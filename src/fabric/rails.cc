#include "fabric/rails.h"

#include "base/error.h"
#include "fabric/ofi/ofi.h"

namespace towline::fabric {

std::unique_ptr<Domain> make_rail(std::string_view name) {
  constexpr std::string_view kOfi = "ofi:";
  if (!name.starts_with(kOfi) || name.size() == kOfi.size())
    fail(Status::kInvalidArgument, "\"{}\" names no rail; write ofi:PROVIDER[/DEVICE][@ADDRESS]", name);
  OfiOptions options;
  std::string_view rest = name.substr(kOfi.size());
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

}  // namespace towline::fabric
