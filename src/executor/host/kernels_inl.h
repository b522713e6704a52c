// The loops of the kernels, compiled once per vector target (Highway's foreach_target).
//
// combine() is: decode, fold, encode, store. An *element* (kernels_elements_inl.h) says how a type
// is decoded and encoded; an *operator* how two vectors combine. Everything is written over a
// Highway tag, so that one text serves full vectors and single elements.
#if defined(ROPEWALK_EXECUTOR_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPEWALK_EXECUTOR_KERNELS_INL_H_
#undef ROPEWALK_EXECUTOR_KERNELS_INL_H_
#else
#define ROPEWALK_EXECUTOR_KERNELS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "executor/host/kernels_elements_inl.h"
#include "executor/host/kernels_pages.h"
#include "executor/host/kernels_table.h"

HWY_BEFORE_NAMESPACE();
namespace ropewalk::executor {
namespace HWY_NAMESPACE {

/// Whether loads and stores of the first n elements touch no memory beyond them.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64 && HWY_TARGET < HWY_NEON
inline constexpr bool kExactMasks = true;
#else
inline constexpr bool kExactMasks = false;
#endif

struct Sum {
  template <class E, class D, class V>
  HWY_INLINE V apply(D d, V a, V b) const {
    return E::add(d, a, b);
  }
};
struct Prod {
  template <class E, class D, class V>
  HWY_INLINE V apply(D d, V a, V b) const {
    return E::multiply(d, a, b);
  }
};
struct Max {
  template <class E, class D, class V>
  HWY_INLINE V apply(D d, V a, V b) const {
    return E::max(d, a, b);
  }
};
struct Min {
  template <class E, class D, class V>
  HWY_INLINE V apply(D d, V a, V b) const {
    return E::min(d, a, b);
  }
};
/// An operator known only at run time: one loop for rare cases.
struct AnyOp {
  RedOp op;
  template <class E, class D, class V>
  HWY_INLINE V apply(D d, V a, V b) const {
    switch (op) {
      case RedOp::kProd: return E::multiply(d, a, b);
      case RedOp::kMax: return E::max(d, a, b);
      case RedOp::kMin: return E::min(d, a, b);
      case RedOp::kSum:
      case RedOp::kAvg:
      case RedOp::kPreMulSum: break;
    }
    return E::add(d, a, b);
  }
};

/// Loads all lanes of `d`, or with n > 0 the first n of them and zeros.
template <class E, class D>
HWY_INLINE hn::Vec<D> load(D d, const void* source, std::size_t i, std::size_t n) {
  const hn::Rebind<typename E::Stored, D> ds;
  const auto* address = static_cast<const typename E::Stored*>(source) + i;
  if (n > 0) return E::decode(d, hn::MaskedLoad(hn::FirstN(ds, n), ds, address));
  return E::decode(d, hn::LoadU(ds, address));
}

/// y = x_0 op x_1 op ... at element i, for kSources sources (0: known at run time).
template <class E, class Op, int kSources>
struct Folded {
  using Element = E;
  const void* const* sources;
  std::size_t num_sources;
  Op op;

  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t i, std::size_t n) const {
    auto y = load<E>(d, sources[0], i, n);
    if constexpr (kSources == 2) {
      y = op.template apply<E>(d, y, load<E>(d, sources[1], i, n));
    } else {
      for (std::size_t s = 1; s < num_sources; ++s) {
        y = op.template apply<E>(d, y, load<E>(d, sources[s], i, n));
      }
    }
    return y;
  }
};

/// The same with one source scaled, and divided at the end.
template <class E, class Op>
struct ScaledFolded {
  using Element = E;
  const void* const* sources;
  std::size_t num_sources;
  Op op;
  std::size_t scaled;
  typename E::Compute scalar;
  Divisor<typename E::Compute> divisor;

  template <class D>
  HWY_INLINE hn::Vec<D> source_at(D d, std::size_t s, std::size_t i, std::size_t n) const {
    const auto x = load<E>(d, sources[s], i, n);
    return s == scaled ? E::multiply(d, x, hn::Set(d, scalar)) : x;
  }
  template <class D>
  HWY_INLINE hn::Vec<D> at(D d, std::size_t i, std::size_t n) const {
    auto y = source_at(d, 0, i, n);
    for (std::size_t s = 1; s < num_sources; ++s) {
      y = op.template apply<E>(d, y, source_at(d, s, i, n));
    }
    return divisor.divides() ? divisor.divide(d, y) : y;
  }
};

/// The destinations: kDestinations of them (0: known at run time).
template <class E, int kDestinations>
struct Outputs {
  void* const* destinations;
  std::size_t num_destinations;

  template <class D>
  HWY_INLINE void store(D /*d*/, hn::Vec<D> y, std::size_t i, std::size_t n) const {
    const hn::Rebind<typename E::Stored, D> ds;
    const auto stored = E::encode(ds, y);
    const std::size_t num = kDestinations > 0 ? kDestinations : num_destinations;
    for (std::size_t k = 0; k < num; ++k) {
      auto* address = static_cast<typename E::Stored*>(destinations[k]) + i;
      if (n > 0) {
        hn::BlendedStore(stored, hn::FirstN(ds, n), ds, address);
      } else {
        hn::StoreU(stored, ds, address);
      }
    }
  }
  template <class D>
  HWY_INLINE void stream(D /*d*/, hn::Vec<D> y, std::size_t i) const {
    const hn::Rebind<typename E::Stored, D> ds;
    const auto stored = E::encode(ds, y);
    hn::Stream(stored, ds, static_cast<typename E::Stored*>(destinations[0]) + i);
    for (std::size_t k = 1; k < num_destinations; ++k) {
      hn::StoreU(stored, ds, static_cast<typename E::Stored*>(destinations[k]) + i);
    }
  }
};

// The last elements that fill no vector are computed as a full vector that overlaps the one before.
// Destinations may be sources, so it is computed before anything is stored, and stored last.

template <class Values, class Out>
HWY_INLINE void run(const Values& values, const Out& out, std::size_t count) {
  using E = typename Values::Element;
  const hn::ScalableTag<typename E::Compute> d;
  const std::size_t lanes = hn::Lanes(d);
  if (count < lanes) {
    // Up to 4 elements, single ones are cheaper, and a later load of one of them need not wait for
    // a masked store, which most CPUs cannot forward.
    if (kExactMasks && count > 4) {
      out.store(d, values.at(d, 0, count), 0, count);
      return;
    }
    const hn::CappedTag<typename E::Compute, 1> d1;
    for (std::size_t i = 0; i < count; ++i) out.store(d1, values.at(d1, i, 0), i, 0);
    return;
  }
  const std::size_t last = count - lanes;
  const auto tail = values.at(d, last, 0);
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto y0 = values.at(d, i, 0);
    const auto y1 = values.at(d, i + lanes, 0);
    const auto y2 = values.at(d, i + 2 * lanes, 0);
    const auto y3 = values.at(d, i + 3 * lanes, 0);
    out.store(d, y0, i, 0);
    out.store(d, y1, i + lanes, 0);
    out.store(d, y2, i + 2 * lanes, 0);
    out.store(d, y3, i + 3 * lanes, 0);
  }
  for (; i < last; i += lanes) out.store(d, values.at(d, i, 0), i, 0);
  out.store(d, tail, last, 0);
}

/// run() with non-temporal stores to the first destination between its first and its last vector.
/// @return false when it is too short for that to matter; then nothing was done
template <class Values, class Out>
HWY_INLINE bool run_streaming(const Values& values, const Out& out, const CombineArgs& args) {
  using E = typename Values::Element;
  using Stored = typename E::Stored;
  const hn::ScalableTag<typename E::Compute> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t vector_bytes = lanes * sizeof(Stored);
  // Highway streams no less than 16 bytes.
  const std::size_t count = args.count;
  if (vector_bytes < 16 || count < 8 * lanes) return false;
  const std::size_t over = reinterpret_cast<std::uintptr_t>(out.destinations[0]) % vector_bytes;
  PagesAhead pages;
  const std::size_t last = count - lanes;
  const auto head = values.at(d, 0, 0);
  const auto tail = values.at(d, last, 0);
  std::size_t i = over == 0 ? 0 : (vector_bytes - over) / sizeof(Stored);
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    if (pages.begins_one(4 * vector_bytes)) {
      for (const void* source : args.sources) {
        PagesAhead::ask_to_read(static_cast<const Stored*>(source) + i);
      }
      PagesAhead::ask_to_write(static_cast<Stored*>(out.destinations[0]) + i);
    }
    const auto y0 = values.at(d, i, 0);
    const auto y1 = values.at(d, i + lanes, 0);
    const auto y2 = values.at(d, i + 2 * lanes, 0);
    const auto y3 = values.at(d, i + 3 * lanes, 0);
    out.stream(d, y0, i);
    out.stream(d, y1, i + lanes);
    out.stream(d, y2, i + 2 * lanes);
    out.stream(d, y3, i + 3 * lanes);
  }
  for (; i < last; i += lanes) out.store(d, values.at(d, i, 0), i, 0);
  out.store(d, head, 0, 0);
  out.store(d, tail, last, 0);
  hwy::FlushStream();
  return true;
}

/// Cases that are rare or limited by memory: scaling, division, non-temporal stores. One instance
/// for all operators.
template <class E>
HWY_NOINLINE void combine_any(const CombineArgs& args) {
  const ScaledFolded<E, AnyOp> values{args.sources.data(),
                                      args.sources.size(),
                                      AnyOp{args.op},
                                      static_cast<std::size_t>(args.scaled_source),
                                      E::decode_scalar(args.scalar),
                                      Divisor<typename E::Compute>(args.divisor)};
  const Outputs<E, 0> out{args.destinations.data(), args.destinations.size()};
  if (args.streaming_output && run_streaming(values, out, args)) return;
  run(values, out, args.count);
}

template <class E, class Op>
void combine_with(const CombineArgs& args) {
  // Most non-temporal stores are of two ranks' sums, which get a loop of their own.
  if constexpr (std::is_same_v<Op, Sum>) {
    if (args.streaming_output && args.sources.size() == 2 && args.scaled_source < 0 &&
        args.divisor <= 1) {
      const void* const sources[2] = {args.sources[0], args.sources[1]};
      const Folded<E, Op, 2> values{sources, 2, {}};
      const Outputs<E, 0> out{args.destinations.data(), args.destinations.size()};
      if (run_streaming(values, out, args)) return;
    }
  }
  if (args.scaled_source >= 0 || args.divisor > 1 || args.streaming_output) {
    return combine_any<E>(args);
  }
  const std::size_t num_sources = args.sources.size();
  const std::size_t num_destinations = args.destinations.size();
  if (num_sources == 2 && num_destinations == 1) {
    const void* const sources[2] = {args.sources[0], args.sources[1]};
    void* const destinations[1] = {args.destinations[0]};
    return run(Folded<E, Op, 2>{sources, 2, {}}, Outputs<E, 1>{destinations, 1}, args.count);
  }
  run(Folded<E, Op, 0>{args.sources.data(), num_sources, {}},
      Outputs<E, 0>{args.destinations.data(), num_destinations}, args.count);
}

template <class E>
void add_kernels(detail::CombineTable& table, DataType type) {
  table[static_cast<std::size_t>(type)] = {combine_with<E, Sum>, combine_with<E, Prod>,
                                           combine_with<E, Max>, combine_with<E, Min>,
                                           combine_with<E, Sum>, combine_with<E, Sum>};
}

}  // namespace HWY_NAMESPACE
}  // namespace ropewalk::executor
HWY_AFTER_NAMESPACE();

#endif
