# The program behind `ropewalk check-plugin`. It shares the declarations of the plugin interface with
# the plugin, and nothing else: it loads the plugin at run time.
file(GLOB check_plugin_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/check_plugin/*.cc)
add_executable(ropewalk-check-plugin ${check_plugin_sources})
target_link_libraries(ropewalk-check-plugin PRIVATE rw_core nlohmann_json::nlohmann_json
  ${CMAKE_DL_LIBS})
rw_unity(ropewalk-check-plugin)
# In the wheel the libraries that it needs are in the same folder.
set_target_properties(ropewalk-check-plugin PROPERTIES INSTALL_RPATH "$ORIGIN")
