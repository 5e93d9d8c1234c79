// A domain that moves nothing and completes everything at once: what is left is the engine's own cost.
#pragma once

#include <memory>

#include "fabric/domain.h"

namespace towline::fabric {

std::unique_ptr<Domain> make_null_domain(DomainTraits traits = {});

}  // namespace towline::fabric
