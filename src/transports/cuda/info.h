// What the backend says of itself in an agent's info: who has the right of way beside a model, and what is reserved
// on each GPU, or why nothing is.
#pragma once

#include <string>

namespace towline::cuda {

class Backend;

std::string describe_backend(Backend& backend);

}  // namespace towline::cuda
