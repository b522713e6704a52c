// The words of every collective: element types, reduction operators, operations.
//
// The numbers equal NCCL's (nccl.h 2.28), so that both C APIs can cast after a range check.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ropewalk {

enum class DataType : std::uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,
  kFloat8e5m2 = 11,
};
inline constexpr int kNumDataTypes = 12;

/// Elements that no kernel knows. They are moved as elements of a DataType, whose bits only a
/// complex sum interprets. The numbers continue after DataType's, with room for further types of
/// NCCL.
enum class CarriedType : std::uint8_t {
  kNone = 0,  ///< elements of a DataType
  kBool = 16,
  kInt16 = 17,
  kUint16 = 18,
  kComplex64 = 19,   ///< two float32
  kComplex128 = 20,  ///< two float64
  kByte = 21,        ///< a byte of an element of any other type
  kNothing = 22,     ///< of a barrier
};
inline constexpr int kFirstCarriedType = 16;
inline constexpr int kEndOfCarriedTypes = 22;  ///< of those that users have

/// How one element of a CarriedType travels.
struct Carrier {
  DataType type = DataType::kUint8;
  std::size_t per_element = 1;
};
/// @pre `type` is not kNone
Carrier carrier_of(CarriedType type) noexcept;
/// Whether sums of the carrier's elements are sums of `type`.
bool adds(CarriedType type) noexcept;

/// The operators. kPreMulSum multiplies each rank's input by that rank's scalar, then sums.
/// kAvg divides the sum by the number of ranks; integers truncate towards zero.
enum class RedOp : std::uint8_t {
  kSum = 0,
  kProd = 1,
  kMax = 2,
  kMin = 3,
  kAvg = 4,
  kPreMulSum = 5,
};
inline constexpr int kNumRedOps = 6;

enum class Collective : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kAllToAll,
  kGather,
  kScatter,
  kSendRecv,  ///< every rank sends to the next and receives from the previous one
};
inline constexpr int kNumCollectives = 9;

/// Bytes of one element: 1, 2, 4 or 8.
std::size_t size_of(DataType type) noexcept;
bool is_float(DataType type) noexcept;

/// "float32", "sum", "all_reduce": the spelling of the command line, of schedules and of logs.
std::string_view name(DataType type) noexcept;
std::string_view name(CarriedType type) noexcept;
std::string_view name(RedOp op) noexcept;
std::string_view name(Collective collective) noexcept;

/// The collective of this name(), if any.
std::optional<Collective> parse_collective(std::string_view text) noexcept;

/// True for all_reduce, reduce_scatter and reduce.
bool reduces(Collective collective) noexcept;
/// True for broadcast, reduce, gather and scatter.
bool has_root(Collective collective) noexcept;

}  // namespace ropewalk
