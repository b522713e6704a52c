#include "topology/xml.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/error.h"
#include "topology/json.h"

namespace ropewalk::topology {

XmlFile::XmlFile(std::string_view text, std::string_view origin, bool decode_entities)
    : text_(text.substr(0, kMaxFileBytes + 1)), origin_(origin) {
  if (text.size() > kMaxFileBytes) {
    throw Error(Errc::kInvalidArgument, "{}: {} bytes; {} MiB is the limit", origin, text.size(),
                kMaxFileBytes >> 20);
  }
  unsigned int options = pugi::parse_default;
  if (!decode_entities) options &= ~pugi::parse_escapes;
  const pugi::xml_parse_result result =
      document_.load_buffer(text_.data(), text_.size(), options, pugi::encoding_utf8);
  if (!result) {
    throw Error(Errc::kInvalidArgument, "{}: line {}: {}", origin,
                line_at(static_cast<std::size_t>(result.offset)), result.description());
  }
}

std::size_t XmlFile::line_at(std::size_t offset) const {
  const std::string_view before = std::string_view(text_).substr(0, offset);
  return static_cast<std::size_t>(1 + std::count(before.begin(), before.end(), '\n'));
}

std::size_t XmlFile::line_of(const pugi::xml_node& where) const {
  return line_at(static_cast<std::size_t>(where.offset_debug()));
}

void XmlFile::refuse(const pugi::xml_node& where, const std::string& what) const {
  throw Error(Errc::kInvalidArgument, "{}: line {}: {}", origin_, line_of(where), what);
}

std::string XmlFile::required(const pugi::xml_node& element, const char* attribute) const {
  const pugi::xml_attribute found = element.attribute(attribute);
  if (!found) refuse(element, fmt::format("<{}> has no {}", element.name(), attribute));
  return found.value();
}

long XmlFile::integer(const pugi::xml_node& element, const char* attribute) const {
  const std::string text = required(element, attribute);
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text.c_str(), &end, hexadecimal ? 16 : 10);
  if (text.empty() || *end != '\0' || errno != 0) {
    refuse(element, fmt::format("{}=\"{}\" of <{}> is not a whole number", attribute,
                                text.substr(0, 64), element.name()));
  }
  return value;
}

long XmlFile::integer(const pugi::xml_node& element, const char* attribute, long absent) const {
  const pugi::xml_attribute found = element.attribute(attribute);
  if (!found || *found.value() == '\0') return absent;
  return integer(element, attribute);
}

double XmlFile::number(const pugi::xml_node& element, const char* attribute) const {
  const std::string text = required(element, attribute);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) {
    refuse(element, fmt::format("{}=\"{}\" of <{}> is not a number", attribute, text.substr(0, 64),
                                element.name()));
  }
  return value;
}

}  // namespace ropewalk::topology
