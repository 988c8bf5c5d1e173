// Gives the precompiled headers of the layers a target to belong to (cmake/IngotLayer.cmake).
