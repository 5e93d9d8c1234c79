// The C functions: nothing is thrown over them, and each thread has its own last failure.
#include <tcpx_p2p.h>

#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "session.h"

struct tcpx_session {
  std::shared_ptr<towline_tcpx::Session> session;
};
struct tcpx_connection {
  std::shared_ptr<towline_tcpx::Session> session;
  towline_tcpx::LinkPtr link;
};
struct tcpx_transfer {
  std::shared_ptr<towline_tcpx::Session> session;
  towline_tcpx::LinkPtr link;
  towline_tcpx::OperationPtr operation;
};

namespace {

// A pointer alone: thread-local storage of libraries that are loaded late is short.
thread_local std::unique_ptr<std::string> last_error;
thread_local bool unsaid = false;  // there was no memory for the text

int32_t failed(int32_t status, const char* text) noexcept {
  try {
    last_error = std::make_unique<std::string>(text);
    unsaid = false;
  } catch (const std::bad_alloc&) {
    unsaid = true;
  }
  return status;
}

template <class Work>
int32_t guard(Work work) noexcept {
  try {
    return work();
  } catch (const towline::Error& error) {
    return failed(static_cast<int32_t>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(TOWLINE_OUT_OF_MEMORY, "memory is short");
  } catch (const std::exception& error) {
    return failed(TOWLINE_INTERNAL, error.what());
  }
}

int32_t missing() { return failed(TOWLINE_INVALID_ARGUMENT, "an argument is null"); }

int32_t post(tcpx_connection_t* connection, bool sends, uint64_t memory, uint64_t offset, uint64_t bytes,
             uint64_t tag, tcpx_transfer_t** transfer) {
  if (connection == nullptr || transfer == nullptr) return missing();
  return guard([&] {
    auto made =
        std::make_unique<tcpx_transfer>(tcpx_transfer{connection->session, connection->link, nullptr});
    made->operation = connection->session->post(connection->link, sends, memory, offset, bytes, tag);
    *transfer = made.release();
    return TOWLINE_OK;
  });
}

}  // namespace

extern "C" {

int32_t tcpx_session_create(const tcpx_session_options_t* options, tcpx_session_t** session) {
  if (session == nullptr) return missing();
  return guard([&]() -> int32_t {
    tcpx_session_options_t all = {};
    if (options != nullptr) {
      if (options->struct_size < sizeof(size_t) || options->struct_size > 4096)
        return failed(TOWLINE_INVALID_ARGUMENT, "struct_size of the options is not set");
      std::memcpy(&all, options, std::min(options->struct_size, sizeof all));
    }
    *session = new tcpx_session{std::make_shared<towline_tcpx::Session>(all)};
    return TOWLINE_OK;
  });
}

int32_t tcpx_session_destroy(tcpx_session_t* session) {
  if (session == nullptr) return TOWLINE_OK;
  return guard([&] {
    session->session->shut();
    delete session;
    return TOWLINE_OK;
  });
}

int32_t tcpx_session_address(const tcpx_session_t* session, char* text, size_t capacity) {
  if (session == nullptr || text == nullptr) return missing();
  return guard([&]() -> int32_t {
    const std::string address = session->session->address();
    if (address.size() >= capacity) return failed(TOWLINE_LIMIT_EXCEEDED, "the address does not fit");
    std::memcpy(text, address.c_str(), address.size() + 1);
    return TOWLINE_OK;
  });
}

int32_t tcpx_session_describe(const tcpx_session_t* session, char* json, size_t capacity, size_t* needed) {
  if (session == nullptr || (json == nullptr && capacity != 0)) return missing();
  return guard([&] {
    const std::string text = session->session->describe();
    if (needed != nullptr) *needed = text.size() + 1;
    if (capacity != 0) {
      const std::size_t bytes = std::min(text.size(), capacity - 1);
      std::memcpy(json, text.data(), bytes);
      json[bytes] = '\0';
    }
    return TOWLINE_OK;
  });
}

int32_t tcpx_session_accept(tcpx_session_t* session, uint64_t timeout_ns, tcpx_connection_t** connection) {
  if (session == nullptr || connection == nullptr) return missing();
  return guard([&] {
    *connection = new tcpx_connection{session->session, session->session->accept(timeout_ns)};
    return TOWLINE_OK;
  });
}

int32_t tcpx_session_connect(tcpx_session_t* session, const char* address, uint64_t timeout_ns,
                             tcpx_connection_t** connection) {
  if (session == nullptr || address == nullptr || connection == nullptr) return missing();
  return guard([&] {
    *connection = new tcpx_connection{session->session, session->session->connect(address, timeout_ns)};
    return TOWLINE_OK;
  });
}

int32_t tcpx_connection_close(tcpx_connection_t* connection) {
  if (connection == nullptr) return TOWLINE_OK;
  return guard([&] {
    connection->session->close(connection->link);
    delete connection;
    return TOWLINE_OK;
  });
}

int32_t tcpx_memory_register(tcpx_session_t* session, void* address, uint64_t bytes, int32_t gpu,
                             uint64_t* memory) {
  if (session == nullptr || memory == nullptr) return missing();
  return guard([&] {
    *memory = session->session->register_memory(address, bytes, gpu);
    return TOWLINE_OK;
  });
}

int32_t tcpx_memory_deregister(tcpx_session_t* session, uint64_t memory) {
  if (session == nullptr) return missing();
  return guard([&] {
    session->session->deregister_memory(memory);
    return TOWLINE_OK;
  });
}

int32_t tcpx_post_send(tcpx_connection_t* connection, uint64_t memory, uint64_t offset, uint64_t bytes,
                       uint64_t tag, tcpx_transfer_t** transfer) {
  return post(connection, true, memory, offset, bytes, tag, transfer);
}

int32_t tcpx_post_receive(tcpx_connection_t* connection, uint64_t memory, uint64_t offset, uint64_t bytes,
                          uint64_t tag, tcpx_transfer_t** transfer) {
  return post(connection, false, memory, offset, bytes, tag, transfer);
}

int32_t tcpx_is_complete(const tcpx_transfer_t* transfer) {
  if (transfer == nullptr) return missing();
  return guard([&] { return transfer->session->status(*transfer->operation); });
}

int32_t tcpx_wait(const tcpx_transfer_t* transfer, uint64_t timeout_ns) {
  if (transfer == nullptr) return missing();
  return guard([&] { return transfer->session->wait(*transfer->operation, timeout_ns); });
}

uint64_t tcpx_transfer_bytes(const tcpx_transfer_t* transfer) {
  return transfer == nullptr ? 0 : transfer->session->moved(*transfer->operation);
}

int32_t tcpx_release(tcpx_transfer_t* transfer, uint64_t timeout_ns) {
  if (transfer == nullptr) return TOWLINE_OK;
  return guard([&]() -> int32_t {
    if (!transfer->session->release(transfer->link, transfer->operation, timeout_ns))
      return failed(TOWLINE_TIMED_OUT, "bytes may still move; release it again");
    delete transfer;
    return TOWLINE_OK;
  });
}

const char* tcpx_last_error(void) {
  if (unsaid) return "memory is short";
  return last_error == nullptr ? "" : last_error->c_str();
}
const char* tcpx_status_text(int32_t status) { return towline_status_text(status); }
const char* tcpx_version(void) { return towline_version(); }

}  // extern "C"
