// The requests of multipart uploads, and the parts they are made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/object/object.h"
#include "storage/object/segments.h"

namespace towline::object {

inline constexpr uint64_t kMostParts = 10'000;
inline constexpr uint64_t kMostCopyBytes = uint64_t{5} << 30;

// A part to be: of new bytes, or copied from what is there.
struct Piece {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool copied = false;
};

// The part size for an object of that size, so that the number of parts stays within the limit.
uint64_t part_size(uint64_t object_bytes, uint64_t wanted_bytes);
// [begin, end) of an object in parts of `size`; only the last one may be shorter, and `tail` is the least a
// part that something follows may have: a short rest goes with the part before it.
void cut(uint64_t begin, uint64_t end, uint64_t size, uint64_t least, bool followed,
         std::vector<Piece>& pieces);
// An object of `old_bytes` in which [begin, end) is new. Throws plugin::Failure where S3's rules do not allow
// that.
std::vector<Piece> patch_pieces(uint64_t begin, uint64_t end, uint64_t old_bytes, const Settings& settings);

// Sets of a call what it is; its callbacks and deadline are the caller's.
void make_create(Call& call, const Object& object, Checksum checksum);
void make_part(Call& call, const Object& object, const std::string& upload_id, uint32_t number);
// With the checksum, noted in `part`; `signs`: with the payload's hash in the signature.
void make_upload(Call& call, SegmentsBody& body, Checksum checksum, bool signs, UploadedPart& part);
void make_copy(Call& call, const Object& object, const Version& from, const Piece& piece);
void make_complete(Call& call, const Object& object, const std::string& upload_id, const Parts& parts,
                   Checksum checksum);
void make_abort(Call& call, const ObjectName& name, const std::string& upload_id);
void make_head(Call& call, const ObjectName& name);

// The checksum of all parts in a row.
uint32_t joined_crc(const Parts& parts) noexcept;
[[nodiscard]] Verdict check_created(const Answer& answer, std::string& upload_id);
[[nodiscard]] Verdict check_completed(Answer& answer);
// The ETag of the object that a put or a complete made; "" if the answer has none.
[[nodiscard]] std::string etag_of(const Answer& answer);
// Why it failed where a look, after an answer that got lost, does not find what was written.
[[nodiscard]] std::string why_not_there(const Answer& answer, const ObjectName& name);

}  // namespace towline::object
