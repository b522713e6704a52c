// Bytes per second of combine() and copy(), beside memcpy, by type, operator, shape and size.
//
// A rate counts every byte read and written, as memcpy's does here, so that shapes can be compared.
// Usage: kernels_benchmark [--benchmark_filter=combine/float32]
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/types.h"
#include "core/units.h"
#include "executor/host/kernels.h"

namespace ropewalk::executor {
namespace {

/// The bits of 1 in `type`: products neither grow nor become subnormal, which CPUs are slow at.
std::uint64_t one(DataType type) {
  switch (type) {
    case DataType::kFloat16: return 0x3c00;
    case DataType::kFloat32: return 0x3f800000;
    case DataType::kFloat64: return 0x3ff0000000000000;
    case DataType::kBfloat16: return 0x3f80;
    case DataType::kFloat8e4m3: return 0x38;
    case DataType::kFloat8e5m2: return 0x3c;
    default: return 1;
  }
}

/// Page-aligned memory full of ones.
class Buffer {
 public:
  Buffer(std::size_t bytes, DataType type)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {
    const std::uint64_t element = one(type);
    for (std::size_t i = 0; i < bytes; i += size_of(type)) {
      std::memcpy(memory_.get() + i, &element, size_of(type));
    }
  }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

struct Shape {
  std::size_t sources;
  std::size_t destinations;
};

void set_rate(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void run_combine(benchmark::State& state, DataType type, RedOp op, Shape shape, std::size_t bytes,
                 bool streaming) {
  std::vector<Buffer> buffers;
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (std::size_t i = 0; i < shape.sources + shape.destinations; ++i) {
    buffers.emplace_back(bytes, type);
    if (i < shape.sources) {
      sources.push_back(buffers.back().data());
    } else {
      destinations.push_back(buffers.back().data());
    }
  }
  CombineArgs args;
  args.type = type;
  args.op = op;
  args.sources = sources;
  args.destinations = destinations;
  args.count = bytes / size_of(type);
  args.streaming_output = streaming;
  for (auto _ : state) {
    combine(args);
    benchmark::ClobberMemory();
  }
  set_rate(state, buffers.size() * bytes);
}

void run_copy(benchmark::State& state, std::size_t bytes, bool ours) {
  const Buffer from(bytes, DataType::kUint8);
  const Buffer to(bytes, DataType::kUint8);
  void* const destination = to.data();
  for (auto _ : state) {
    if (ours) {
      copy({&destination, 1}, from.data(), bytes);
    } else {
      std::memcpy(destination, from.data(), bytes);
    }
    benchmark::ClobberMemory();
  }
  set_rate(state, 2 * bytes);
}

std::string label(std::size_t bytes) {
  std::string text = format_bytes(bytes);
  std::erase(text, ' ');
  return text;
}

void register_all() {
  const std::size_t sizes[] = {8, 64, 16 << 10, 512 << 10, 64 << 20};
  for (const std::size_t bytes : sizes) {
    for (const bool ours : {false, true}) {
      benchmark::RegisterBenchmark(
          fmt::format("{}/{}", ours ? "copy" : "memcpy", label(bytes)).c_str(),
          [=](benchmark::State& state) { run_copy(state, bytes, ours); });
    }
  }
  const auto add = [](DataType type, RedOp op, Shape shape, std::size_t bytes, bool streaming) {
    benchmark::RegisterBenchmark(
        fmt::format("combine/{}/{}/{}to{}/{}{}", name(type), name(op), shape.sources,
                    shape.destinations, label(bytes), streaming ? "/streaming" : "")
            .c_str(),
        [=](benchmark::State& state) { run_combine(state, type, op, shape, bytes, streaming); });
  };
  for (int t = 0; t < kNumDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    for (const RedOp op : {RedOp::kSum, RedOp::kProd, RedOp::kMax}) {
      for (const std::size_t bytes : sizes) add(type, op, {2, 1}, bytes, false);
    }
    add(type, RedOp::kSum, {2, 1}, 64 << 20, true);
  }
  for (const Shape shape : {Shape{2, 2}, Shape{3, 1}, Shape{4, 1}, Shape{8, 1}, Shape{4, 3}}) {
    for (const std::size_t bytes : sizes) add(DataType::kFloat32, RedOp::kSum, shape, bytes, false);
  }
}

}  // namespace
}  // namespace ropewalk::executor

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("vector target", ropewalk::executor::vector_target());
  ropewalk::executor::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
