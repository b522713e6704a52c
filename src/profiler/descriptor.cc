#include "profiler/descriptor.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/types.h"
#include "profiler/abi.h"

namespace ropewalk::profiler {
namespace {

// Where a field begins; kNone: the version has none.
constexpr int kNone = -1;
struct Layout {
  int communicator;
  int function;
  int count;
  int type;
  int root_or_peer;
  int algorithm;
  int protocol;
  bool numbers;  // function, type, algorithm and protocol are numbers of a byte, else texts
};

// src/include/plugin/profiler/profiler_v1.h to profiler_v6.h of NCCL.
constexpr Layout collective_layout(int version) {
  if (version == 1) return {32, 48, 72, 84, 80, 106, 107, true};
  if (version == 2) return {32, 48, 72, 88, 80, 112, 120, false};
  if (version == 3) return {32, 48, 72, 88, 80, 104, 112, false};
  return {kNone, 32, 56, 72, 64, 88, 96, false};
}
constexpr Layout message_layout(int version) {
  if (version <= 3) return {32, 40, 64, 56, 72, kNone, kNone, version == 1};
  return {kNone, 24, 48, 40, 56, kNone, kNone, false};
}

class Bytes {
 public:
  explicit Bytes(const void* begin) : begin_(static_cast<const std::byte*>(begin)) {}
  template <typename T>
  [[nodiscard]] T at(int offset) const {
    T value{};
    std::memcpy(&value, begin_ + offset, sizeof value);
    return value;
  }
  [[nodiscard]] std::string_view text(int offset) const {
    const char* text = at<const char*>(offset);
    return text == nullptr ? std::string_view() : std::string_view(text);
  }

 private:
  const std::byte* begin_;
};

// ncclFunc_t of version 1.
constexpr std::array<std::string_view, 8> kFunctions = {
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"};
constexpr std::array<std::string_view, 7> kAlgorithms = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
constexpr std::array<std::string_view, 3> kProtocols = {"LL", "LL128", "SIMPLE"};

template <std::size_t N>
std::string_view named(const std::array<std::string_view, N>& names, std::uint8_t number) {
  return number < N ? names[number] : std::string_view("unknown");
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// "AllReduce" to "all_reduce".
std::string function_name(std::string_view name) {
  if (name == "AlltoAll") return "all_to_all";
  if (name == "Recv") return "receive";
  std::string result;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto letter = static_cast<unsigned char>(name[i]);
    if (std::isupper(letter) != 0 && i > 0) result += '_';
    result += static_cast<char>(std::tolower(letter));
  }
  return result;
}

// "ncclFloat32" to "float32".
std::string type_name(std::string_view name) {
  constexpr std::string_view kPrefix = "nccl";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  const std::string known = lower(name);
  if (known == "float8e4m3") return "float8_e4m3";
  if (known == "float8e5m2") return "float8_e5m2";
  if (known == "half") return "float16";
  if (known == "float") return "float32";
  if (known == "double") return "float64";
  return known;
}

Operation read_operation(const Layout& layout, const Bytes& bytes, bool message) {
  Operation operation;
  operation.message = message;
  if (layout.communicator != kNone) {
    operation.communicator = bytes.at<std::uint64_t>(layout.communicator);
  }
  operation.count = bytes.at<std::uint64_t>(layout.count);
  const int root_or_peer = bytes.at<std::int32_t>(layout.root_or_peer);
  if (layout.numbers) {
    operation.name = function_name(named(kFunctions, bytes.at<std::uint8_t>(layout.function)));
    const auto type = bytes.at<std::uint8_t>(layout.type);
    operation.type = type < kNumDataTypes ? std::string(name(static_cast<DataType>(type)))
                                          : std::string("unknown");
  } else {
    operation.name = function_name(bytes.text(layout.function));
    operation.type = type_name(bytes.text(layout.type));
  }
  if (message) {
    operation.peer = root_or_peer;
    return operation;
  }
  if (operation.name == "broadcast" || operation.name == "reduce" || operation.name == "gather" ||
      operation.name == "scatter") {
    operation.root = root_or_peer;
  }
  const std::string_view algorithm =
      layout.numbers ? named(kAlgorithms, bytes.at<std::uint8_t>(layout.algorithm))
                     : bytes.text(layout.algorithm);
  const std::string_view protocol = layout.numbers
                                        ? named(kProtocols, bytes.at<std::uint8_t>(layout.protocol))
                                        : bytes.text(layout.protocol);
  operation.algorithm = lower(algorithm);
  operation.protocol = lower(protocol);
  return operation;
}

}  // namespace

Event read_descriptor(int version, const void* descriptor) {
  const Bytes bytes(descriptor);
  Event event;
  event.kind = version <= 4 ? bytes.at<std::uint8_t>(0) : bytes.at<std::uint64_t>(0);
  event.parent = bytes.at<void*>(8);
  if (event.kind == abi::kCollective) {
    event.operation = read_operation(collective_layout(version), bytes, false);
  } else if (event.kind == abi::kPointToPoint) {
    event.operation = read_operation(message_layout(version), bytes, true);
  } else if (event.kind == abi::kKernelChannel && version >= 4) {
    event.gpu_start = bytes.at<std::uint64_t>(32);
  }
  if (event.operation.has_value()) event.operation->rank = bytes.at<std::int32_t>(16);
  return event;
}

std::optional<std::uint64_t> read_gpu_stop(int version, int state, const void* arguments) {
  if (version < 4 || state != abi::kKernelChannelStop || arguments == nullptr) return std::nullopt;
  return Bytes(arguments).at<std::uint64_t>(0);
}

}  // namespace ropewalk::profiler
