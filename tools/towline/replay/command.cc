#include "replay/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>

#include "failure.h"
#include "replay/replay.h"
#include "units.h"

namespace tool::replay {

namespace {

// Options that one side alone decides. The other side would ignore them.
constexpr const char* kOfPrefill[] = {"--trace",      "--requests", "--seed",  "--speed",
                                      "--model",      "--layers",   "--dtype", "--page-tokens",
                                      "--prefill-tp", "--by",       "--check", "--spill"};
constexpr const char* kOfDecode[] = {"--in-flight"};

template <size_t kCount>
void refuse_options(const CLI::App& command, const char* const (&names)[kCount], const char* side) {
  for (const char* name : names) {
    if (command.get_option(name)->count() != 0)
      throw Failure{fmt::format("{} is an option of the {} side: give it to --role {}", name, side, side)};
  }
}

uint64_t parse_patience(const std::string& text) {
  const auto patience = std::chrono::ceil<std::chrono::seconds>(parse_duration(text));
  if (patience < std::chrono::seconds{1} || patience > std::chrono::hours{1})
    throw Failure{fmt::format("--patience {}: a duration from 1s to 1h is needed, such as 60s or 5m", text)};
  return static_cast<uint64_t>(patience.count());
}

}  // namespace

void add_replay_command(CLI::App& app, CommonOptions& common) {
  auto* command =
      app.add_subcommand("replay", "Play a trace of requests through prefill and decode processes");
  auto options = std::make_shared<ReplayOptions>();
  Setup& setup = options->setup;
  auto texts = std::make_shared<std::map<std::string, std::string>>();

  command
      ->add_option("--trace", setup.trace,
                   "Trace in Mooncake's format (JSON lines); without it, similar requests are generated")
      ->type_name("FILE");
  command->add_option("--requests,-n", setup.requests, "How many requests")
      ->type_name("N")
      ->check(refuse_unless_whole)
      ->capture_default_str();
  command->add_option("--seed", setup.seed, "Of the generated requests and the order of pages")
      ->type_name("N")
      ->check(refuse_unless_whole)
      ->capture_default_str();
  command->add_option("--speed", (*texts)["speed"], "Factor on the trace's own speed, or max")
      ->type_name("X|max")
      ->default_str("max");
  command->add_option("--model", setup.model, "llama-3.1-8b, llama-3.1-70b, qwen3-32b or deepseek-v3")
      ->capture_default_str();
  command->add_option("--layers", setup.layers, "Only the first so many layers; 0: all")
      ->capture_default_str();
  command->add_option("--dtype", setup.dtype, "bf16, fp16, fp8, int8 or fp32")->capture_default_str();
  command->add_option("--page-tokens", setup.page_tokens, "Tokens in a page")->capture_default_str();
  command->add_option("--prefill-tp", setup.prefill_tp, "Tensor parallel ranks on the prefill side")
      ->capture_default_str();
  command->add_option("--decode-tp", setup.decode_tp, "Tensor parallel ranks that decode")
      ->capture_default_str();
  command->add_option("--by", setup.by, "The side that posts: decode (it pulls) or prefill (it pushes)")
      ->type_name("SIDE")
      ->capture_default_str();
  command
      ->add_option("--pool", (*texts)["memory"],
                   "Each side's pool, over its ranks; by default by the largest request")
      ->type_name("SIZE");
  command
      ->add_option("--memory", setup.memory_kind,
                   "shared (peers map it), private (as malloc gives it), or vram: decode takes GPUs from the "
                   "first on, "
                   "prefill from the last back")
      ->capture_default_str();
  command->add_option("--backend", setup.backend, "Force one backend; by default the router chooses")
      ->type_name("NAME");
  command
      ->add_option("--spill", setup.spill, "Storage for blocks that do not fit into the prefill ranks' pools")
      ->type_name("file:DIR|s3://BUCKET|az://..|gs://..");
  command->add_option("--split", setup.threads, "Workers a transfer is split over")
      ->capture_default_str()
      ->check(CLI::Range(1, 8));
  command->add_option("--in-flight", setup.in_flight, "Requests a decode rank fetches at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--check", setup.verify, "sampled: some words of every page; full: every byte")
      ->capture_default_str();
  command
      ->add_option("--faults", options->faults,
                   "Faults to inject into the transports, in the form of TOWLINE_FAULTS")
      ->type_name("SPEC");
  command
      ->add_option("--patience", (*texts)["patience"],
                   "Give up after so long without progress, 1s to 1h in whole seconds")
      ->type_name("DURATION")
      ->default_str("60s");
  command
      ->add_option("--role", (*texts)["role"],
                   "Run only this side; the other runs elsewhere: prefill or decode")
      ->check(CLI::IsMember({"prefill", "decode"}));
  command
      ->add_option("--listen", options->listen, "Where rank 0 listens; further ranks take the ports after it")
      ->type_name("HOST:PORT");
  command->add_option("--connect", options->connect, "Where prefill rank 0 listens, for --role decode")
      ->type_name("HOST:PORT");
  command->add_flag("--json", common.json, "Print the summary as JSON");
  command->footer(
      "Examples:\n"
      "  towline replay                                       a small replay on this machine\n"
      "  towline replay --trace t.jsonl -n 100 --layers 8     a trace of one's own\n"
      "  towline replay --prefill-tp 2 --decode-tp 4          heads are split differently on the two sides\n"
      "  towline replay --model deepseek-v3 --by prefill      prefill pushes latent pages\n"
      "  towline replay --spill file:/var/tmp --pool 1GiB     evicted blocks go to files and come back\n"
      "  towline replay --role prefill --listen 10.0.0.7:7700 on one host ...\n"
      "  towline replay --role decode --connect 10.0.0.7:7700 ... and on the other");

  command->callback([command, options, texts, &common] {
    const std::string& speed = (*texts)["speed"];
    if (!speed.empty() && speed != "max") {
      const double factor = parse_factor(speed);
      if (factor <= 0) throw Failure{"--speed " + speed + ": a number above 0, or max"};
      options->setup.speed = factor;
    }
    if (const std::string& memory = (*texts)["memory"]; !memory.empty())
      options->setup.memory_bytes = parse_size(memory);
    if (const std::string& patience = (*texts)["patience"]; !patience.empty())
      options->setup.patience_s = parse_patience(patience);
    const std::string& role = (*texts)["role"];
    if (role == "prefill") options->role = Role::kPrefill;
    if (role == "decode") options->role = Role::kDecode;
    if (options->role == Role::kDecode) refuse_options(*command, kOfPrefill, "prefill");
    if (options->role == Role::kPrefill) refuse_options(*command, kOfDecode, "decode");
    if (options->role == Role::kPrefill && options->listen.empty()) options->listen = "127.0.0.1:0";
    if ((options->role == Role::kDecode) != !options->connect.empty()) {
      throw Failure{"--role decode and --connect HOST:PORT belong together"};
    }
    run_replay(*options, common);
  });
}

}  // namespace tool::replay
