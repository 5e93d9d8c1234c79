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

// The part size for an object of that size, so that the number of parts stays within the limit.
uint64_t part_size(uint64_t object_bytes, uint64_t wanted_bytes);
// [begin, end) of an object in parts of `size`; only the last one may be shorter, and `tail` is the least a
// part that something follows may have: a short rest goes with the part before it.
void cut(uint64_t begin, uint64_t end, uint64_t size, uint64_t least, bool followed,
         std::vector<Piece>& pieces);
// An object of `old_bytes` in which [begin, end) is new. Throws plugin::Failure where S3's rules do not allow
// that.
std::vector<Piece> patch_pieces(uint64_t begin, uint64_t end, uint64_t old_bytes, const Settings& settings);

// The checksum of all parts in a row.
uint32_t joined_crc(const Parts& parts) noexcept;
// Do a checksum that was sent and the server's own of the same bytes agree? Either may be missing.
[[nodiscard]] Verdict check_sum(std::string_view sent, std::string_view theirs);
[[nodiscard]] Verdict check_created(const Answer& answer, std::string& upload_id);
// The ETag of the object that a put or a complete made; "" if the answer has none.
[[nodiscard]] std::string etag_of(const Answer& answer);
// Why it failed where a look, after an answer that got lost or that told of a failure, does not find what was written.
[[nodiscard]] std::string why_not_there(const Answer& answer, const ObjectName& name);

}  // namespace towline::object
