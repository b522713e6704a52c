#include "machine/host_graphs.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace ropewalk::machine {
namespace {

void put(std::string& out, std::uint64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void put(std::string& out, std::string_view text) {
  put(out, text.size());
  out += text;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number())); }
  // Of things that take at least `least` bytes each.
  std::size_t count(std::size_t least) {
    const std::uint64_t value = number();
    require(value <= rest_.size() / least);
    return value;
  }
  void end() const { require(rest_.empty()); }
  static void require(bool right) {
    if (!right) throw Error(Errc::kInternal, "the hosts' topologies arrived damaged");
  }

 private:
  std::string_view take(std::uint64_t bytes) {
    require(bytes <= rest_.size());
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  std::string_view rest_;
};

}  // namespace

void HostGraphs::add(std::string text) {
  const auto known = std::ranges::find(texts, text);
  text_of_host.push_back(static_cast<std::uint32_t>(known - texts.begin()));
  if (known == texts.end()) texts.push_back(std::move(text));
}

std::string write(const HostGraphs& graphs) {
  std::string out;
  put(out, graphs.origin);
  put(out, std::uint64_t{graphs.described});
  put(out, graphs.texts.size());
  for (const std::string& text : graphs.texts) put(out, text);
  put(out, graphs.text_of_host.size());
  for (const std::uint32_t index : graphs.text_of_host) put(out, std::uint64_t{index});
  return out;
}

HostGraphs read_host_graphs(std::string_view bytes) {
  Reader reader(bytes);
  HostGraphs graphs;
  graphs.origin = reader.text();
  graphs.described = reader.number() != 0;
  graphs.texts.resize(reader.count(sizeof(std::uint64_t)));
  for (std::string& text : graphs.texts) text = reader.text();
  graphs.text_of_host.resize(reader.count(sizeof(std::uint64_t)));
  for (std::uint32_t& index : graphs.text_of_host) {
    const std::uint64_t number = reader.number();
    Reader::require(number < graphs.texts.size());
    index = static_cast<std::uint32_t>(number);
  }
  reader.end();
  return graphs;
}

}  // namespace ropewalk::machine
