#include "commands.h"

#include "bench/bench.h"
#include "completions.h"
#include "config.h"
#include "cp/command.h"
#include "info.h"
#include "ls.h"
#include "metrics.h"
#include "replay/command.h"
#include "serve.h"

namespace tool {

void add_commands(CLI::App& app, CommonOptions& common) {
  add_info_command(app, common);
  add_metrics_command(app, common);
  add_config_command(app, common);
  bench::add_bench_command(app, common);
  replay::add_replay_command(app, common);
  cp::add_cp_command(app, common);
  add_ls_command(app, common);
  add_serve_command(app, common);
  add_completions_command(app);
}

}  // namespace tool
