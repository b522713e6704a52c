// Reading XML with messages that name file and line. Includes pugixml; for readers only.
#pragma once

#include <cstddef>
#include <pugixml.hpp>
#include <string>
#include <string_view>

namespace ropewalk::topology {

/// A parsed XML text.
class XmlFile {
 public:
  /// @param decode_entities whether &amp; is & (NCCL's own reader leaves it as it is)
  /// @throws Error kInvalidArgument naming line and reason; for texts beyond kMaxFileBytes
  XmlFile(std::string_view text, std::string_view origin, bool decode_entities);

  [[nodiscard]] pugi::xml_node root() const { return document_.document_element(); }

  /// @throws Error kInvalidArgument "ORIGIN: line N: WHAT", N being the line of `where`
  [[noreturn]] void refuse(const pugi::xml_node& where, const std::string& what) const;
  [[nodiscard]] std::size_t line_of(const pugi::xml_node& where) const;

  /// @throws as refuse() when the attribute is missing
  [[nodiscard]] std::string required(const pugi::xml_node& element, const char* attribute) const;
  /// A whole number, decimal or 0x hexadecimal. @throws as refuse() for anything else
  [[nodiscard]] long integer(const pugi::xml_node& element, const char* attribute) const;
  /// The same, `absent` where there is no such attribute or it is empty.
  [[nodiscard]] long integer(const pugi::xml_node& element, const char* attribute,
                             long absent) const;
  /// A finite number. @throws as refuse() for anything else
  [[nodiscard]] double number(const pugi::xml_node& element, const char* attribute) const;

 private:
  [[nodiscard]] std::size_t line_at(std::size_t offset) const;

  std::string text_;
  std::string origin_;
  pugi::xml_document document_;
};

}  // namespace ropewalk::topology
