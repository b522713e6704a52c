#include "topology/json.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/error.h"
#include "topology/json_text.h"

namespace ropewalk::topology {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSchema = "gpu-topology/1";
constexpr std::string_view kUnits = "GB/s per direction, 1 GB = 1e9 bytes";
constexpr std::size_t kMaxDepth = 6;

/// A JSON value and where it is, for messages.
class Value {
 public:
  Value(const Json& json, std::string_view origin, std::string path)
      : json_(json), origin_(origin), path_(std::move(path)) {}

  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(Errc::kInvalidArgument, "{}: {}{}{}", origin_, path_, path_.empty() ? "" : ": ",
                what);
  }

  void must_be_object(std::initializer_list<std::string_view> known) const {
    if (!json_.is_object()) refuse(fmt::format("must be an object, is {}", json_.type_name()));
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        refuse(fmt::format("unknown field \"{}\"; known are {}", key.substr(0, 64),
                           fmt::join(known, ", ")));
      }
    }
  }

  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }

  [[nodiscard]] Value field(const char* key) const {
    if (!has(key)) refuse(fmt::format("\"{}\" is missing", key));
    return {json_.at(key), origin_, path_.empty() ? key : path_ + "." + key};
  }

  [[nodiscard]] std::vector<Value> elements(std::size_t limit) const {
    if (!json_.is_array()) refuse(fmt::format("must be an array, is {}", json_.type_name()));
    if (json_.size() > limit) {
      refuse(fmt::format("has {} elements; {} is the limit", json_.size(), limit));
    }
    std::vector<Value> found;
    found.reserve(json_.size());
    for (std::size_t i = 0; i < json_.size(); ++i) {
      found.emplace_back(json_.at(i), origin_, fmt::format("{}[{}]", path_, i));
    }
    return found;
  }

  /// Name and value of each field of an object.
  [[nodiscard]] std::vector<std::pair<std::string, Value>> entries() const {
    if (!json_.is_object()) refuse(fmt::format("must be an object, is {}", json_.type_name()));
    std::vector<std::pair<std::string, Value>> found;
    for (const auto& [key, value] : json_.items()) {
      found.emplace_back(key, Value(value, origin_, path_ + "." + key));
    }
    return found;
  }

  [[nodiscard]] std::string text() const {
    if (!json_.is_string()) refuse(fmt::format("must be a string, is {}", json_.type_name()));
    return json_.get<std::string>();
  }

  [[nodiscard]] double number() const {
    if (!json_.is_number()) refuse(fmt::format("must be a number, is {}", json_.type_name()));
    return json_.get<double>();
  }

  [[nodiscard]] int integer() const {
    const double value = number();
    if (!(value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max()) ||
        std::floor(value) != value) {
      refuse(fmt::format("must be a whole number, is {}", json_.dump()));
    }
    return static_cast<int>(value);
  }

  [[nodiscard]] bool boolean() const {
    if (!json_.is_boolean()) {
      refuse(fmt::format("must be true or false, is {}", json_.type_name()));
    }
    return json_.get<bool>();
  }

  [[nodiscard]] std::optional<double> optional_number(const char* key) const {
    return has(key) ? std::optional(field(key).number()) : std::nullopt;
  }
  [[nodiscard]] std::optional<int> optional_integer(const char* key) const {
    return has(key) ? std::optional(field(key).integer()) : std::nullopt;
  }
  [[nodiscard]] std::optional<bool> optional_boolean(const char* key) const {
    return has(key) ? std::optional(field(key).boolean()) : std::nullopt;
  }
  [[nodiscard]] std::optional<std::string> optional_text(const char* key) const {
    return has(key) ? std::optional(field(key).text()) : std::nullopt;
  }
  [[nodiscard]] std::vector<std::string> optional_texts(const char* key) const {
    std::vector<std::string> found;
    if (!has(key)) return found;
    for (const Value& value : field(key).elements(kMaxLinks)) found.push_back(value.text());
    return found;
  }

 private:
  const Json& json_;
  std::string_view origin_;
  std::string path_;
};

/// Reads a text and counts the bytes, so that who is told of a token knows its position.
struct CountedRead {
  using difference_type = std::ptrdiff_t;
  using value_type = char;
  using pointer = const char*;
  using reference = const char&;
  using iterator_category = std::input_iterator_tag;

  reference operator*() const { return *at; }
  CountedRead& operator++() {
    ++at;
    ++*read;
    return *this;
  }
  friend bool operator==(const CountedRead& a, const CountedRead& b) { return a.at == b.at; }

  const char* at;
  std::size_t* read;
};

/// Refuses wrong JSON, and what the library's parser would let pass: deep nesting, a key twice in
/// one object.
class Review final : public nlohmann::json_sax<Json> {
 public:
  Review(std::string_view text, std::string_view origin) : text_(text), origin_(origin) {}

  void run() {
    Json::sax_parse(CountedRead{text_.data(), &read_},
                    CountedRead{text_.data() + text_.size(), &read_}, this);
  }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    throw Error(Errc::kInvalidArgument, "{}: {}: field \"{}\" twice in one object", origin_, here(),
                key.substr(0, 64));
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    throw Error(Errc::kInvalidArgument, "{}: {}", origin_, parse_error_words(text_, error.what()));
  }

 private:
  [[nodiscard]] std::string here() const { return position_in(text_, read_ > 0 ? read_ - 1 : 0); }

  bool open() {
    if (keys_.size() >= kMaxDepth) {
      throw Error(Errc::kInvalidArgument, "{}: {}: nested deeper than {}", origin_, here(),
                  kMaxDepth);
    }
    keys_.emplace_back();
    return true;
  }

  bool close() {
    keys_.pop_back();
    return true;
  }

  std::string_view text_;
  std::string_view origin_;
  std::size_t read_ = 0;
  std::vector<std::set<std::string>> keys_;  ///< of every object and array that is open
};

/// Reads the text twice: the library's parser with a callback takes time by the square of an
/// array's length.
Json parse(std::string_view text, std::string_view origin) {
  if (text.size() > kMaxFileBytes) {
    throw Error(Errc::kInvalidArgument, "{}: {} bytes; {} MiB is the limit", origin, text.size(),
                kMaxFileBytes >> 20);
  }
  Review(text, origin).run();
  return Json::parse(text);
}

Attributes read_attributes(const Value& value) {
  Attributes found;
  if (!value.has("attributes")) return found;
  for (const auto& [key, entry] : value.field("attributes").entries()) {
    found.emplace_back(key, entry.text());
  }
  return found;
}

Node read_node(const Value& value) {
  value.must_be_object({"id", "kind", "host", "rank", "numa", "model", "package", "board",
                        "net_gbps", "device", "bus_id", "cpus", "attributes"});
  Node node;
  node.id = value.field("id").text();
  const Value kind = value.field("kind");
  const std::optional<NodeKind> known = parse_node_kind(kind.text());
  if (!known) {
    std::vector<std::string_view> names;
    for (const NodeKind each : all_node_kinds()) names.push_back(name(each));
    kind.refuse(fmt::format("unknown kind \"{}\"; known are {}", kind.text().substr(0, 64),
                            fmt::join(names, ", ")));
  }
  node.kind = *known;
  const int unsaid = node.kind == NodeKind::kNetwork ? -1 : 0;
  node.host = value.optional_integer("host").value_or(unsaid);
  node.rank = value.optional_integer("rank").value_or(-1);
  node.numa = value.optional_integer("numa");
  node.model = value.optional_text("model").value_or("");
  node.package = value.optional_integer("package");
  node.board = value.optional_integer("board");
  node.net_gbps = value.optional_number("net_gbps");
  node.device = value.optional_text("device").value_or("");
  node.bus_id = value.optional_text("bus_id").value_or("");
  node.cpus = value.optional_text("cpus").value_or("");
  node.attributes = read_attributes(value);
  return node;
}

LinkType read_link_type(const Value& value) {
  const std::optional<LinkType> known = parse_link_type(value.text());
  if (!known) {
    std::vector<std::string_view> names;
    for (const LinkType each : all_link_types()) names.push_back(name(each));
    value.refuse(fmt::format("unknown link type \"{}\"; known are {}", value.text().substr(0, 64),
                             fmt::join(names, ", ")));
  }
  return *known;
}

NodeIndex read_end(const Value& value, const std::unordered_map<std::string, NodeIndex>& by_id) {
  const auto found = by_id.find(value.text());
  if (found == by_id.end()) {
    value.refuse(fmt::format("there is no node \"{}\"", value.text().substr(0, kMaxIdBytes)));
  }
  return found->second;
}

Link read_link(const Value& value, const std::unordered_map<std::string, NodeIndex>& by_id) {
  value.must_be_object({"src", "dst", "type", "capacity", "latency_us", "nominal", "effective",
                        "nccl_model", "lanes", "gen", "width", "measured", "assumed",
                        "attributes"});
  Link link;
  link.source = read_end(value.field("src"), by_id);
  link.destination = read_end(value.field("dst"), by_id);
  link.type = read_link_type(value.field("type"));
  link.capacity = value.field("capacity").number();
  link.latency_us = value.optional_number("latency_us");
  link.nominal = value.optional_number("nominal");
  link.effective = value.optional_number("effective");
  link.nccl_model = value.optional_number("nccl_model");
  link.lanes = value.optional_integer("lanes");
  link.gen = value.optional_integer("gen");
  link.width = value.optional_integer("width");
  link.measured = value.optional_text("measured");
  link.assumed = value.optional_boolean("assumed");
  link.attributes = read_attributes(value);
  return link;
}

std::vector<Plane> read_planes(const Value& value) {
  std::vector<Plane> planes;
  for (const auto& [plane_name, types] : value.entries()) {
    Plane plane{plane_name, {}};
    for (const Value& type : types.elements(all_link_types().size())) {
      plane.types.push_back(read_link_type(type));
    }
    planes.push_back(std::move(plane));
  }
  return planes;
}

/// Adds `key` unless the value says nothing.
template <typename T>
void put(Json& to, const char* key, const std::optional<T>& value) {
  if (value) to[key] = *value;
}
void put(Json& to, const char* key, const std::string& value) {
  if (!value.empty()) to[key] = value;
}
void put(Json& to, const char* key, const Attributes& attributes) {
  if (attributes.empty()) return;
  Json object = Json::object();
  for (const auto& [attribute, value] : attributes) object[attribute] = value;
  to[key] = std::move(object);
}

Json to_json(const Node& node) {
  Json json = Json::object();
  json["id"] = node.id;
  json["kind"] = name(node.kind);
  if (node.host >= 0) json["host"] = node.host;
  put(json, "numa", node.numa);
  if (node.rank >= 0) json["rank"] = node.rank;
  put(json, "model", node.model);
  put(json, "package", node.package);
  put(json, "board", node.board);
  put(json, "net_gbps", node.net_gbps);
  put(json, "device", node.device);
  put(json, "bus_id", node.bus_id);
  put(json, "cpus", node.cpus);
  put(json, "attributes", node.attributes);
  return json;
}

Json to_json(const Link& link, const std::vector<Node>& nodes) {
  Json json = Json::object();
  json["src"] = nodes[link.source].id;
  json["dst"] = nodes[link.destination].id;
  json["capacity"] = link.capacity;
  json["type"] = name(link.type);
  put(json, "lanes", link.lanes);
  put(json, "latency_us", link.latency_us);
  put(json, "assumed", link.assumed);
  put(json, "nominal", link.nominal);
  put(json, "effective", link.effective);
  put(json, "nccl_model", link.nccl_model);
  put(json, "gen", link.gen);
  put(json, "width", link.width);
  put(json, "measured", link.measured);
  put(json, "attributes", link.attributes);
  return json;
}

/// Text from a machine's own files need not be UTF-8; JSON must be.
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// In one line where the schema's files have it so: spaces after ':' and ','.
std::string compact(const Json& json) {
  if (json.is_object() || json.is_array()) {
    std::string out(1, json.is_object() ? '{' : '[');
    bool first = true;
    for (const auto& [key, value] : json.items()) {
      if (!first) out += ", ";
      first = false;
      if (json.is_object()) out += dumped(Json(key)) + ": ";
      out += compact(value);
    }
    return out + (json.is_object() ? '}' : ']');
  }
  return dumped(json);
}

std::string lines(const std::vector<std::string>& each) {
  if (each.empty()) return "[]";
  return fmt::format("[\n    {}\n  ]", fmt::join(each, ",\n    "));
}

}  // namespace

Topology read_json(std::string_view text, std::string_view origin) {
  const Json json = parse(text, origin);
  const Value top(json, origin, "");
  top.must_be_object({"schema", "name", "title", "units", "hosts", "symmetric", "planes",
                      "lane_gbps", "sources", "assumptions", "nodes", "links"});
  if (top.field("schema").text() != kSchema) {
    top.field("schema").refuse(fmt::format("must be \"{}\"", kSchema));
  }
  if (top.has("units") && !top.field("units").text().starts_with("GB/s per direction")) {
    top.field("units").refuse(fmt::format("must be \"{}\"", kUnits));
  }
  Description description;
  description.name = top.field("name").text();
  description.title = top.optional_text("title").value_or("");
  description.hosts = top.optional_integer("hosts").value_or(1);
  description.lane_gbps = top.optional_number("lane_gbps");
  if (top.has("planes")) description.planes = read_planes(top.field("planes"));
  description.sources = top.optional_texts("sources");
  description.assumptions = top.optional_texts("assumptions");

  std::unordered_map<std::string, NodeIndex> by_id;
  for (const Value& value : top.field("nodes").elements(kMaxNodes)) {
    description.nodes.push_back(read_node(value));
    const auto [other, fresh] =
        by_id.emplace(description.nodes.back().id, description.nodes.size() - 1);
    if (!fresh) {
      value.field("id").refuse(fmt::format("\"{}\" is also the id of nodes[{}]",
                                           other->first.substr(0, kMaxIdBytes), other->second));
    }
  }
  for (const Value& value : top.field("links").elements(kMaxLinks)) {
    description.links.push_back(read_link(value, by_id));
  }
  try {
    Topology topology(std::move(description));
    if (top.optional_boolean("symmetric").value_or(false) && !topology.symmetric()) {
      const auto& links = topology.links();
      const Link& alone = *std::find_if(links.begin(), links.end(), [&](const Link& link) {
        const auto twin = topology.find_link(link.destination, link.source, link.type);
        return !twin.has_value() || topology.link(*twin).capacity != link.capacity;
      });
      top.field("symmetric")
          .refuse(fmt::format(
              "is true, but the {} link from {} to {} ({} GB/s) has no twin of the same type and "
              "capacity",
              name(alone.type), topology.node(alone.source).id, topology.node(alone.destination).id,
              alone.capacity));
    }
    return topology;
  } catch (const Error& error) {
    const std::string_view what = error.what();
    if (what.starts_with(fmt::format("{}: ", origin))) throw;
    throw Error(error.code(), "{}: {}", origin, what);
  }
}

std::string write_json(const Topology& topology) {
  const Description& from = topology.description();
  Json planes = Json::object();
  for (const Plane& plane : from.planes) {
    planes[plane.name] = Json::array();
    for (const LinkType type : plane.types) planes[plane.name].push_back(name(type));
  }
  const auto texts = [](const std::vector<std::string>& each) {
    std::vector<std::string> out;
    for (const std::string& text : each) out.push_back(dumped(Json(text)));
    return lines(out);
  };
  std::vector<std::string> nodes;
  for (const Node& node : from.nodes) nodes.push_back(compact(to_json(node)));
  std::vector<std::string> links;
  for (const Link& link : from.links) links.push_back(compact(to_json(link, from.nodes)));

  std::string out = "{\n";
  const auto field = [&](std::string_view key, const std::string& value) {
    out += fmt::format("  \"{}\": {},\n", key, value);
  };
  field("schema", Json(kSchema).dump());
  field("name", dumped(Json(from.name)));
  field("title", dumped(Json(from.title)));
  field("units", Json(kUnits).dump());
  field("hosts", fmt::format("{}", from.hosts));
  field("symmetric", topology.symmetric() ? "true" : "false");
  field("planes", compact(planes));
  if (from.lane_gbps) field("lane_gbps", Json(*from.lane_gbps).dump());
  field("sources", texts(from.sources));
  field("assumptions", texts(from.assumptions));
  field("nodes", lines(nodes));
  out += fmt::format("  \"links\": {}\n}}\n", lines(links));
  return out;
}

}  // namespace ropewalk::topology
