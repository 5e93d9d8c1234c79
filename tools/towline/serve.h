// `towline serve`: memory that other processes copy from and to.
#pragma once

#include "options.h"

namespace CLI {
class App;
}

namespace tool {

void add_serve_command(CLI::App& app, CommonOptions& common);

}  // namespace tool
