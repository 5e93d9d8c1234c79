// The plugin's tables over the client.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "base/error.h"
#include "base/service_plugin.h"
#include "metadata/etcd/client.h"
#include "towline/plugin/v1.h"

namespace {

using namespace towline;        // NOLINT: C entry points
using namespace towline::etcd;  // NOLINT: the same

class Host final : public Listener {
 public:
  explicit Host(const towline_directory_host_v1& table) : table_(table) {}

  void fail(const std::string& text) const { table_.fail(table_.context, text.c_str()); }

  [[nodiscard]] Settings settings() const {
    return {[this](const char* key) -> std::optional<std::string> {
              const char* value = table_.config(table_.context, key, nullptr);
              return value == nullptr ? std::nullopt : std::optional<std::string>(value);
            },
            [this](const char* name) -> std::optional<std::string> {
              const char* value = table_.environment(table_.context, name);
              return value == nullptr ? std::nullopt : std::optional<std::string>(value);
            }};
  }

  void done(uint64_t call, Status status, const std::string& text,
            const std::vector<KeyValue>& found) override {
    std::vector<towline_directory_item> items;
    try {
      items.reserve(found.size());
    } catch (const std::bad_alloc&) {
      return table_.done(table_.context, call, TOWLINE_OUT_OF_MEMORY, "out of memory", nullptr, 0);
    }
    for (const KeyValue& item : found) items.push_back(view(item));
    table_.done(table_.context, call, static_cast<int32_t>(status), text.empty() ? nullptr : text.c_str(),
                items.data(), items.size());
  }

  void event(uint64_t watch, const Watch::Event& event) override {
    const towline_directory_item item = event.item != nullptr ? view(*event.item) : towline_directory_item{};
    table_.event(table_.context, watch, event.kind, event.item != nullptr ? &item : nullptr,
                 static_cast<int32_t>(event.status), event.text.empty() ? nullptr : event.text.c_str());
  }

  void log(int level, const std::string& text) override { table_.log(table_.context, level, text.c_str()); }

 private:
  static towline_directory_item view(const KeyValue& item) {
    return {item.key.data(), item.key.size(), item.value.data(), item.value.size(), item.revision};
  }

  towline_directory_host_v1 table_;
};

}  // namespace

struct towline_directory_client {
  explicit towline_directory_client(const towline_directory_host_v1& table) : host(table) {}
  Host host;
  std::unique_ptr<Client> client;
};

namespace {

template <class Call>
int32_t guard(const Host& host, Call&& call) noexcept {
  try {
    return static_cast<int32_t>(call());
  } catch (const Error& error) {
    host.fail(error.message());
    return static_cast<int32_t>(error.code());
  } catch (const std::bad_alloc&) {
    return TOWLINE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    host.fail(error.what());
    return TOWLINE_INTERNAL;
  }
}

int32_t open(const towline_directory_host_v1* host, const char* variant, const char* authority,
             const char* path, towline_directory_client** client) {
  towline_directory_host_v1 known;
  if (towline_take(&known, sizeof known, TOWLINE_DIRECTORY_HOST_V1_MINIMUM, host) == 0)
    return TOWLINE_UNSUPPORTED;
  return guard(Host(known), [&] {
    auto made = std::make_unique<towline_directory_client>(known);
    made->client =
        std::make_unique<Client>(read_options(made->host.settings(), variant, authority, path), made->host);
    *client = made.release();
    return Status::kOk;
  });
}

void close(towline_directory_client* client, uint64_t deadline_ns) {
  client->client->close(deadline_ns);
  delete client;
}

std::string text_of(const void* bytes, size_t count) { return {static_cast<const char*>(bytes), count}; }

int32_t submit(towline_directory_client* client, const towline_directory_call_args* args) {
  return guard(client->host, [&] {
    const Status status = client->client->submit(
        {args->call, args->op, args->flags, text_of(args->item.key, args->item.key_bytes),
         text_of(args->item.value, args->item.value_bytes), args->deadline_ns});
    if (status == Status::kAgain) client->host.fail("too many calls of the directory are under way");
    if (status == Status::kClosed) client->host.fail("the directory is closed");
    return status;
  });
}

void cancel(towline_directory_client* client, uint64_t call) { client->client->cancel(call); }

int32_t watch(towline_directory_client* client, uint64_t number, const void* prefix, size_t bytes,
              uint32_t flags) {
  return guard(client->host, [&] {
    client->client->watch(number, text_of(prefix, bytes), flags);
    return Status::kOk;
  });
}

void unwatch(towline_directory_client* client, uint64_t number) {
  try {
    client->client->unwatch(number);
  } catch (const std::bad_alloc&) {  // it goes on, and nobody listens
  }
}

size_t describe(towline_directory_client* client, char* json, size_t capacity) {
  const std::string text = client->client->describe();
  if (capacity != 0) {
    const size_t bytes = std::min(capacity - 1, text.size());
    std::memcpy(json, text.data(), bytes);
    json[bytes] = '\0';
  }
  return text.size();
}

const void* query_table(const char* id, uint32_t version) {
  static const towline_directory_table_v1 table = {
      sizeof(towline_directory_table_v1), open, close, submit, cancel, watch, unwatch, describe};
  return version == 1 && std::strcmp(id, "directory") == 0 ? &table : nullptr;
}

}  // namespace

extern "C" TOWLINE_API const towline_plugin_v1_t* towline_plugin_v1(uint32_t number) {
  static const towline_plugin_v1_t plugin =
      towline::service_plugin("etcd", "metadata in an etcd, through its JSON gateway", query_table);
  return number == 0 ? &plugin : nullptr;
}
