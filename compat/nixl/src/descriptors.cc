// Descriptors and lists of them.
#include <backend/backend_aux.h>
#include <nixl_descriptors.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>

#include <serdes/serdes.h>
#include "log.h"

namespace own = towline::nixl;

namespace {

// Fills the common part of descriptors; false if the blob is too short for it.
bool read_basic(const nixl_blob_t& blob, nixlBasicDesc& desc) noexcept {
  const bool whole = blob.size() >= sizeof(nixlBasicDesc);
  uint64_t parts[3] = {};
  if (whole) std::memcpy(parts, blob.data(), sizeof parts);
  desc.addr = parts[0];
  desc.len = parts[1];
  desc.devId = parts[2];
  return whole;
}

nixl_blob_t write_basic(const nixlBasicDesc& desc) {
  const uint64_t parts[3] = {desc.addr, desc.len, desc.devId};
  return {reinterpret_cast<const char*>(parts), sizeof parts};
}

std::string describe(const nixlBasicDesc& desc) {
  return fmt::format("{{address {:#x}, {} bytes, device {}}}", desc.addr, desc.len, desc.devId);
}

// The tags and names that lists are serialized with.
constexpr const char* kListTag = "nixlDList";
constexpr const char* kBasicList = "nixlBDList";
constexpr const char* kBlobList = "nixlSDList";

template <class T>
constexpr const char* kListName = nullptr;
template <>
constexpr const char* kListName<nixlBasicDesc> = kBasicList;
template <>
constexpr const char* kListName<nixlBlobDesc> = kBlobList;

}  // namespace

const std::string nixl_null_agent = "NULL_AGENT";

nixlBasicDesc::nixlBasicDesc(const nixl_blob_t& blob) {
  if (blob.size() != sizeof(nixlBasicDesc) || !read_basic(blob, *this)) addr = len = devId = 0;
}

nixl_blob_t nixlBasicDesc::serialize() const { return write_basic(*this); }

void nixlBasicDesc::print(const std::string& suffix) const {
  own::log(own::LogLevel::kInfo, describe(*this) + suffix);
}

nixlBlobDesc::nixlBlobDesc(const nixl_blob_t& blob) {
  if (read_basic(blob, *this)) metaInfo = blob.substr(sizeof(nixlBasicDesc));
}

nixl_blob_t nixlBlobDesc::serialize() const { return write_basic(*this) + metaInfo; }

void nixlBlobDesc::print(const std::string& suffix) const {
  nixlBasicDesc::print(fmt::format(" with {} bytes of metadata{}", metaInfo.size(), suffix));
}

nixlRemoteDesc::nixlRemoteDesc(const nixl_blob_t& blob) {
  if (read_basic(blob, *this)) remoteAgent = blob.substr(sizeof(nixlBasicDesc));
}

nixl_blob_t nixlRemoteDesc::serialize() const { return write_basic(*this) + remoteAgent; }

template <class T>
void nixlDescList<T>::remDesc(const int& index) {
  if (index < 0 || static_cast<size_t>(index) >= descs.size()) {
    throw std::out_of_range(fmt::format("remDesc: index {} of a list of {}", index, descs.size()));
  }
  descs.erase(descs.begin() + index);
}

template <class T>
nixlDescList<nixlBasicDesc> nixlDescList<T>::trim() const {
  nixlDescList<nixlBasicDesc> result(type);
  result.reserve(descs.size());
  for (const T& desc : descs) result.emplace(static_cast<const nixlBasicDesc&>(desc));
  return result;
}

template <class T>
int nixlDescList<T>::getIndex(const nixlBasicDesc& query) const {
  const auto found =
      std::find_if(descs.begin(), descs.end(), [&](const nixlBasicDesc& desc) { return desc == query; });
  return found == descs.end() ? int{NIXL_ERR_NOT_FOUND} : static_cast<int>(found - descs.begin());
}

template <class T>
nixl_status_t nixlDescList<T>::serialize(nixlSerDes* serializer) const {
  const char* name = kListName<T>;
  if (name == nullptr || serializer == nullptr) {
    return own::fail(NIXL_ERR_INVALID_PARAM, "only basic and blob descriptors are serialized");
  }
  const size_t count = descs.size();
  nixl_status_t status = serializer->addStr(kListTag, name);
  if (status == NIXL_SUCCESS) status = serializer->addBuf("t", &type, sizeof type);
  if (status == NIXL_SUCCESS) status = serializer->addBuf("n", &count, sizeof count);
  if (status != NIXL_SUCCESS || count == 0) return status;
  if constexpr (std::is_same_v<T, nixlBasicDesc>) {
    return serializer->addBuf("", descs.data(), static_cast<ssize_t>(count * sizeof(T)));
  } else {
    for (const T& desc : descs) {
      status = serializer->addStr("", desc.serialize());
      if (status != NIXL_SUCCESS) break;
    }
    return status;
  }
}

template <class T>
nixlDescList<T>::nixlDescList(nixlSerDes* deserializer) : type(DRAM_SEG) {
  const char* name = kListName<T>;
  uint64_t count = 0;
  if (name == nullptr || deserializer == nullptr || deserializer->getStr(kListTag) != name) return;
  nixl_mem_t stored = DRAM_SEG;
  if (deserializer->getBuf("t", &stored, sizeof stored) != NIXL_SUCCESS || stored < DRAM_SEG ||
      stored > FILE_SEG || deserializer->getBuf("n", &count, sizeof count) != NIXL_SUCCESS) {
    return;
  }
  type = stored;
  if (count == 0) return;
  if constexpr (std::is_same_v<T, nixlBasicDesc>) {
    const ssize_t bytes = deserializer->getBufLen("");
    if (bytes < 0 || static_cast<uint64_t>(bytes) / sizeof(T) != count || bytes % sizeof(T) != 0) return;
    descs.resize(count);
    (void)deserializer->getBuf("", descs.data(), bytes);
  } else {
    for (uint64_t i = 0; i < count; ++i) {
      const std::string blob = deserializer->getStr("");
      if (blob.size() < sizeof(nixlBasicDesc)) {
        descs.clear();
        return;
      }
      descs.emplace_back(blob);
    }
  }
}

template <class T>
std::string nixlDescList<T>::to_string(bool compact) const {
  std::string text = fmt::format("{} descriptors of {}", descs.size(), nixlEnumStrings::memTypeStr(type));
  if (compact) {
    std::map<size_t, size_t> sizes;
    for (const T& desc : descs) ++sizes[desc.len];
    for (const auto& [bytes, times] : sizes) text += fmt::format(", {} of {} bytes", times, bytes);
  } else {
    for (const T& desc : descs) text += "\n  " + describe(desc);
  }
  return text;
}

template <class T>
void nixlDescList<T>::print() const {
  std::printf("%s\n", to_string().c_str());
}

template class nixlDescList<nixlBasicDesc>;
template class nixlDescList<nixlBlobDesc>;
template class nixlDescList<nixlRemoteDesc>;
template class nixlDescList<nixlMetaDesc>;
template class nixlDescList<nixlRemoteMetaDesc>;
template class nixlDescList<nixlStrideDesc>;
