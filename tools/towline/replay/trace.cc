#include "replay/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "failure.h"
#include "samples.h"

namespace tool::replay {
namespace {

// Far beyond any context; keeps sums of a malformed trace from overflowing.
constexpr uint64_t kMostTokens = 1ull << 27;

uint64_t whole_number(const nlohmann::json& object, const char* key, uint64_t most,
                      const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) throw Failure{fmt::format("{}: '{}' is missing", where, key)};
  if (!found->is_number() || found->get<double>() < 0 || found->get<double>() > static_cast<double>(most)) {
    throw Failure{fmt::format("{}: '{}' is {}, not a number from 0 to {}", where, key, found->dump(), most)};
  }
  return found->is_number_float() ? static_cast<uint64_t>(found->get<double>()) : found->get<uint64_t>();
}

}  // namespace

Request parse_request(std::string_view line, const std::string& where) {
  const auto object = nlohmann::json::parse(line, nullptr, false);
  if (object.is_discarded() || !object.is_object()) throw Failure{where + ": not a JSON object"};
  Request request;
  request.timestamp_ms = whole_number(object, "timestamp", UINT64_MAX >> 12, where);
  request.input_tokens = static_cast<uint32_t>(whole_number(object, "input_length", kMostTokens, where));
  request.output_tokens = static_cast<uint32_t>(whole_number(object, "output_length", kMostTokens, where));
  const auto hashes = object.find("hash_ids");
  if (hashes == object.end() || !hashes->is_array()) {
    throw Failure{fmt::format("{}: 'hash_ids' is missing or not a list", where)};
  }
  for (const auto& hash : *hashes) {
    if (!hash.is_number_integer()) {
      throw Failure{fmt::format("{}: 'hash_ids' holds {}, not a whole number", where, hash.dump())};
    }
    request.hashes.push_back(hash.get<uint64_t>());
  }
  if (request.input_tokens == 0) throw Failure{where + ": 'input_length' is 0"};
  const uint64_t blocks = (uint64_t{request.input_tokens} + kHashBlockTokens - 1) / kHashBlockTokens;
  if (request.hashes.size() != blocks) {
    throw Failure{fmt::format("{}: {} hash_ids for {} tokens, which are {} blocks of {}", where,
                              request.hashes.size(), request.input_tokens, blocks, kHashBlockTokens)};
  }
  return request;
}

std::vector<Request> read_trace(const std::string& path, size_t limit) {
  // Every prefill process reads the file itself.
  std::error_code none;
  if (const auto type = std::filesystem::status(path, none).type();
      type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::character) {
    throw Failure{
        fmt::format("trace {} can be read only once, and every prefill process reads it: "
                    "write it to a file first",
                    path)};
  }
  std::ifstream file{path};
  if (!file) throw Failure{fmt::format("cannot open trace {}: {}", path, std::strerror(errno))};
  std::vector<Request> requests;
  std::string line;
  for (size_t number = 1; requests.size() < limit && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    requests.push_back(parse_request(line, fmt::format("{} line {}", path, number)));
  }
  if (file.bad()) throw Failure{fmt::format("cannot read trace {}: {}", path, std::strerror(errno))};
  if (requests.empty()) throw Failure{fmt::format("trace {} has no requests", path)};
  return requests;
}

TraceShape shape_of(const std::vector<Request>& requests) {
  TraceShape shape;
  Samples lengths;
  std::unordered_set<uint64_t> distinct;
  for (const Request& request : requests) {
    lengths.add(request.input_tokens);
    shape.blocks += request.hashes.size();
    distinct.insert(request.hashes.begin(), request.hashes.end());
    shape.largest_input_tokens = std::max(shape.largest_input_tokens, request.input_tokens);
  }
  shape.requests = requests.size();
  shape.distinct_blocks = distinct.size();
  shape.median_input_tokens = lengths.median();
  shape.mean_input_tokens = requests.empty() ? 0 : lengths.sum() / static_cast<double>(requests.size());
  return shape;
}

}  // namespace tool::replay
