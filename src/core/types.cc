#include "core/types.h"

#include <algorithm>

namespace ropewalk {
namespace {

constexpr std::array<std::string_view, kNumDataTypes> kDataTypeNames = {
    "int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
    "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
constexpr std::array<std::size_t, kNumDataTypes> kDataTypeSizes = {1, 1, 4, 4, 8, 8,
                                                                   2, 4, 8, 2, 1, 1};
constexpr std::array<std::string_view, kEndOfCarriedTypes - kFirstCarriedType> kCarriedTypeNames = {
    "bool", "int16", "uint16", "complex64", "complex128", "byte"};
constexpr std::array<std::string_view, kNumRedOps> kRedOpNames = {"sum", "prod", "max",
                                                                  "min", "avg",  "premulsum"};
constexpr std::array<std::string_view, kNumCollectives> kCollectiveNames = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
    "all_to_all", "gather",     "scatter",        "sendrecv"};

}  // namespace

std::size_t size_of(DataType type) noexcept {
  return kDataTypeSizes[static_cast<std::size_t>(type)];
}

Carrier carrier_of(CarriedType type) noexcept {
  switch (type) {
    case CarriedType::kInt16:
    case CarriedType::kUint16: return {DataType::kFloat16, 1};  // the other type of two bytes
    case CarriedType::kComplex64: return {DataType::kFloat32, 2};
    case CarriedType::kComplex128: return {DataType::kFloat64, 2};
    case CarriedType::kNone:
    case CarriedType::kBool:
    case CarriedType::kByte:
    case CarriedType::kNothing: break;
  }
  return {DataType::kUint8, 1};
}

bool adds(CarriedType type) noexcept {
  return type == CarriedType::kComplex64 || type == CarriedType::kComplex128;
}

bool is_float(DataType type) noexcept { return type >= DataType::kFloat16; }

std::string_view name(DataType type) noexcept {
  return kDataTypeNames[static_cast<std::size_t>(type)];
}
std::string_view name(CarriedType type) noexcept {
  return kCarriedTypeNames.at(static_cast<std::size_t>(type) - kFirstCarriedType);
}
std::string_view name(RedOp op) noexcept { return kRedOpNames[static_cast<std::size_t>(op)]; }
std::string_view name(Collective collective) noexcept {
  return kCollectiveNames[static_cast<std::size_t>(collective)];
}

std::optional<Collective> parse_collective(std::string_view text) noexcept {
  const auto found = std::find(kCollectiveNames.begin(), kCollectiveNames.end(), text);
  if (found == kCollectiveNames.end()) return std::nullopt;
  return static_cast<Collective>(found - kCollectiveNames.begin());
}

bool reduces(Collective collective) noexcept {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
}
bool has_root(Collective collective) noexcept {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

}  // namespace ropewalk
