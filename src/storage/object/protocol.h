// The differences between kinds of servers: names, signatures, the requests of uploads and listings, and what their answers
// mean. One object for each instance of the backend, without state of its own; any thread.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "storage/object/object.h"
#include "storage/object/segments.h"

namespace towline::object {

// A request before it is signed.
struct Outgoing {
  std::string_view method;
  Target target;                               // SAS tokens are added to its query
  std::map<std::string, std::string> headers;  // by lower-case name
  uint64_t body_bytes = 0;
  std::string_view payload_hash;  // hexadecimal SHA-256, or kUnsignedPayload
  std::time_t now = 0;            // by the server's clock
  std::string_view region;
};

class Protocol {
 public:
  virtual ~Protocol() = default;
  static std::unique_ptr<Protocol> make(ServerKind kind);

  [[nodiscard]] virtual const char* scheme() const noexcept = 0;
  // "scheme://bucket/key", taken literally. Throws plugin::Failure saying what is wrong with it.
  [[nodiscard]] ObjectName parse_uri(std::string_view uri) const { return object::parse_uri(uri, scheme()); }
  [[nodiscard]] ObjectName parse_prefix(std::string_view uri) const {
    return object::parse_prefix(uri, scheme());
  }

  // Adds what every request needs, and with `keys` who sends it. Throws plugin::Failure.
  virtual void sign(Outgoing& request, const Keys* keys, const Settings& settings) const = 0;

  // The functions below set of a call what it is; its callbacks and deadline are the caller's.

  // ---- an object in one request. `tag`: a name of this write, which a look finds at the object; "": none is kept
  virtual void make_put(Call& call, const std::string& tag) const = 0;
  // The body, with the checksum, noted in `part`; `signs`: with the payload's hash in the signature.
  virtual void make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool signs,
                           UploadedPart& part) const = 0;
  // The verdict on what was sent with the checksums of `part`, where the answer tells the server's own.
  [[nodiscard]] virtual Verdict check_upload(const Answer& answer, const UploadedPart& part) const = 0;
  virtual void make_head(Call& call, const ObjectName& name) const = 0;
  [[nodiscard]] virtual Version version_of(const Headers& headers) const = 0;

  // ---- uploads in parts
  // The server gives out uploads' names, and keeps their parts until they are aborted: then make_create and make_abort
  // are called. Else a writer makes a name, and the server forgets parts by itself.
  [[nodiscard]] virtual bool keeps_uploads() const noexcept { return false; }
  // Parts can be copied from what is there: then make_copy is called.
  [[nodiscard]] virtual bool copies_parts() const noexcept { return false; }
  // A write can be made to depend on the version that is there.
  [[nodiscard]] virtual bool has_conditions() const noexcept { return true; }
  virtual void make_create(Call&, const Object&, Checksum) const {}
  virtual void make_part(Call& call, const Object& object, const std::string& upload_id,
                         uint32_t number) const = 0;
  virtual void make_copy(Call&, const Object&, const Version&, const Piece&) const {}
  // The verdict on a part that was sent; notes its ETag.
  [[nodiscard]] virtual Verdict check_part(const Answer& answer, UploadedPart& part) const = 0;
  virtual void make_complete(Call& call, const Object& object, const std::string& upload_id,
                             const Parts& parts, Checksum checksum) const = 0;
  [[nodiscard]] virtual Verdict check_completed(Answer&) const { return {}; }
  virtual void make_abort(Call&, const ObjectName&, const std::string&) const {}

  // ---- listings
  virtual void make_list(Call& call, const ObjectName& prefix, const std::string& next) const = 0;
  [[nodiscard]] virtual std::optional<Listing> decode_list(std::string_view body) const = 0;

  // Whether writes are known by a tag rather than by a checksum.
  [[nodiscard]] virtual bool tags_writes() const noexcept { return false; }
};

}  // namespace towline::object
