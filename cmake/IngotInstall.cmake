# What a user of the installed program or library looks for besides them, below share/ingot.
configure_file(${PROJECT_SOURCE_DIR}/cmake/ingot.pc.in ${PROJECT_BINARY_DIR}/ingot.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ingot.pc DESTINATION ${CMAKE_INSTALL_DATADIR}/ingot)
install(FILES ${PROJECT_BINARY_DIR}/ingot.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY examples/c examples/kubernetes examples/recipes examples/slurm
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ingot)

# JSON Schemas of the documents of --json.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  install(CODE "
    execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/docs/schema/make.py
      \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/ingot/schema\" COMMAND_ERROR_IS_FATAL ANY)
  ")
endif()
