// SPDX-License-Identifier: Apache-2.0
#include "csv.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"

namespace episodic::tools {

std::vector<std::vector<std::string>> parse_csv(std::string_view text, const std::string& label) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  bool quoted = false, any = false;  // any: something of this row was read
  const auto end_row = [&] {
    row.push_back(std::move(field));
    field.clear();
    if (!rows.empty() && row.size() != rows.front().size())
      throw FileError(fmt::format("{}: row {} has {} fields, but there are {} columns", label,
                                  rows.size(), row.size(), rows.front().size()));
    rows.push_back(std::move(row));
    row.clear();
    any = false;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"')
        field.push_back(c);
      else if (i + 1 < text.size() && text[i + 1] == '"')
        field.push_back(text[++i]);
      else
        quoted = false;
    } else if (c == '"') {
      quoted = any = true;
    } else if (c == ',') {
      row.push_back(std::move(field));
      field.clear();
      any = true;
    } else if (c == '\n') {
      if (any || !field.empty()) end_row();  // an empty line is no row
    } else if (c != '\r') {
      field.push_back(c);
      any = true;
    }
  }
  if (quoted) throw FileError(label + ": a quotation mark is not closed");
  if (any) end_row();
  if (rows.size() < 2)
    throw FileError(label + ": expected a table, names of columns first and a row for each clause");
  return rows;
}

}  // namespace episodic::tools
