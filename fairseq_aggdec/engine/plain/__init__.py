"""Is a model exactly what its classes are, and has it changed since its weights were packed?"""
