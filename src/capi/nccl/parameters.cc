// NCCL's access to its parameters by name: they are Ropewalk's settings here, by their variables
// (ROPEWALK_TIMEOUT), and those of NCCL's variables that name one (environment.cc). The values are
// those in force. Switches are 0 and 1, sizes bytes, times nanoseconds; the rest is text.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/nccl/guard.h"
#include "comm/runtime.h"
#include "core/log.h"
#include "core/settings.h"

namespace ropewalk::nccl {
namespace {

constexpr std::array<std::pair<std::string_view, Setting>, 9> kNcclNames = {{
    {"NCCL_DEBUG", Setting::kDebug},
    {"NCCL_DEBUG_SUBSYS", Setting::kDebugSubsys},
    {"NCCL_DEBUG_FILE", Setting::kDebugFile},
    {"NCCL_P2P_DISABLE", Setting::kPeerAccess},
    {"NCCL_MIN_CTAS", Setting::kMinBlocks},
    {"NCCL_MAX_CTAS", Setting::kMaxBlocks},
    {"NCCL_CGA_CLUSTER_SIZE", Setting::kClusterSize},
    {"NCCL_HOSTID", Setting::kHostId},
    {"NCCL_SOCKET_IFNAME", Setting::kSocketIfname},
}};

std::string key_of(const SettingRow& row) { return fmt::format("ROPEWALK_{}", row.name); }

// A handle is the address of a setting's row.
const SettingRow& row_of(ncclParamHandle_t handle) {
  const auto* given = reinterpret_cast<const SettingRow*>(handle);
  for (const SettingRow& row : settings_table()) {
    if (&row == given) return row;
  }
  throw Error(Errc::kInvalidArgument, "h: {} is not a handle of ncclParamBind",
              static_cast<const void*>(handle));
}

const SettingRow& row_of(const char* key) {
  const std::string_view wanted = &checked(key, "key");
  for (const auto& [name, id] : kNcclNames) {
    if (wanted == name) return settings_table()[static_cast<std::size_t>(id)];
  }
  for (const SettingRow& row : settings_table()) {
    if (wanted == key_of(row)) return row;
  }
  throw Error(Errc::kInvalidArgument,
              "key: there is no parameter {}; ncclParamGetAllParameterKeys has them all", wanted);
}

std::string text_of(const SettingRow& row) { return comm::Runtime::process().config().raw(row.id); }

bool is_number(const SettingRow& row) {
  return row.type != SettingType::kText && row.type != SettingType::kChoice;
}

std::int64_t number_of(const SettingRow& row) {
  const Config config = comm::Runtime::process().config();
  switch (row.type) {
    case SettingType::kBool: return config.flag(row.id) ? 1 : 0;
    case SettingType::kInteger: return config.integer(row.id);
    case SettingType::kBytes: return static_cast<std::int64_t>(config.bytes(row.id));
    case SettingType::kDuration: return config.duration(row.id).count();
    case SettingType::kText:
    case SettingType::kChoice: break;
  }
  throw Error(Errc::kInvalidArgument, "h: {} is a text: ncclParamGetStr reads it", key_of(row));
}

template <typename Value>
ncclResult_t get_number(const char* entry, ncclParamHandle_t handle, Value* value) noexcept {
  return guarded(entry, [&] {
    const SettingRow& row = row_of(handle);
    const std::int64_t number = number_of(row);
    if (!std::in_range<Value>(number)) {
      throw Error(Errc::kInvalidArgument, "h: {} is {}, which {} bits do not hold", key_of(row),
                  number, 8 * sizeof(Value));
    }
    checked(value, "out") = static_cast<Value>(number);
  });
}

int length_of(std::size_t bytes) { return static_cast<int>(bytes); }

// A number as eight bytes, a text with the zero that ends it.
void get_raw(const SettingRow& row, void* value, int room, int* bytes) {
  std::string raw;
  if (is_number(row)) {
    const std::int64_t number = number_of(row);
    raw.assign(reinterpret_cast<const char*>(&number), sizeof number);
  } else {
    raw = text_of(row);
    raw.push_back('\0');
  }
  if (room < length_of(raw.size())) {
    throw Error(Errc::kInvalidArgument, "maxLen: {} bytes, and {} has {}", room, key_of(row),
                raw.size());
  }
  checked(bytes, "len") = length_of(raw.size());
  std::memcpy(&checked(static_cast<char*>(value), "out"), raw.data(), raw.size());
}

void dump_all() {
  for (const SettingRow& row : settings_table()) {
    log::info(log::kEnv, "{} = {}", key_of(row), text_of(row));
  }
}

}  // namespace
}  // namespace ropewalk::nccl

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

RW_NCCL_API(ncclResult_t, ncclParamBind, ncclParamHandle_t* handle, const char* key) {
  return guarded("ncclParamBind", [&] {
    ncclParamHandle_t& out = checked(handle, "out");
    out = reinterpret_cast<ncclParamHandle_t>(&row_of(key));
  });
}

#define RW_NCCL_PARAM_GET(name, type)                                      \
  RW_NCCL_API(ncclResult_t, name, ncclParamHandle_t handle, type* value) { \
    return get_number(#name, handle, value);                               \
  }
RW_NCCL_PARAM_GET(ncclParamGetI8, std::int8_t)
RW_NCCL_PARAM_GET(ncclParamGetI16, std::int16_t)
RW_NCCL_PARAM_GET(ncclParamGetI32, std::int32_t)
RW_NCCL_PARAM_GET(ncclParamGetI64, std::int64_t)
RW_NCCL_PARAM_GET(ncclParamGetU8, std::uint8_t)
RW_NCCL_PARAM_GET(ncclParamGetU16, std::uint16_t)
RW_NCCL_PARAM_GET(ncclParamGetU32, std::uint32_t)
RW_NCCL_PARAM_GET(ncclParamGetU64, std::uint64_t)
#undef RW_NCCL_PARAM_GET

// Valid until the thread's next call of it.
RW_NCCL_API(ncclResult_t, ncclParamGetStr, ncclParamHandle_t handle, const char** text) {
  return guarded("ncclParamGetStr", [&] {
    thread_local std::string kept;
    const char*& out = checked(text, "out");
    kept = text_of(row_of(handle));
    out = kept.c_str();
  });
}

RW_NCCL_API(ncclResult_t, ncclParamGet, ncclParamHandle_t handle, void* value, int room,
            int* bytes) {
  return guarded("ncclParamGet", [&] { get_raw(row_of(handle), value, room, bytes); });
}

// Valid until the thread's next call of it.
RW_NCCL_API(ncclResult_t, ncclParamGetParameter, const char* key, const char** text, int* length) {
  return guarded("ncclParamGetParameter", [&] {
    thread_local std::string kept;
    const char*& out = checked(text, "value");
    int& length_out = checked(length, "valueLen");
    kept = text_of(row_of(key));
    out = kept.c_str();
    length_out = length_of(kept.size());
  });
}

// Valid until the thread's next call of it.
RW_NCCL_API(ncclResult_t, ncclParamGetAllParameterKeys, const char*** keys, int* count) {
  return guarded("ncclParamGetAllParameterKeys", [&] {
    thread_local std::vector<std::string> names;
    thread_local std::vector<const char*> table;
    const char**& out = checked(keys, "table");
    int& count_out = checked(count, "tableLen");
    names.clear();
    for (const auto& [name, id] : kNcclNames) names.emplace_back(name);
    for (const SettingRow& row : settings_table()) names.push_back(key_of(row));
    table.clear();
    for (const std::string& name : names) table.push_back(name.c_str());
    out = table.data();
    count_out = length_of(table.size());
  });
}

// At level INFO, subsystem ENV.
RW_NCCL_API(void, ncclParamDumpAll) { guarded("ncclParamDumpAll", dump_all); }
