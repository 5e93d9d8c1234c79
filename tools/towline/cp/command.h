// `towline cp`.
#pragma once

#include "options.h"

namespace CLI {
class App;
}

namespace tool::cp {

void add_cp_command(CLI::App& app, CommonOptions& common);

}  // namespace tool::cp
