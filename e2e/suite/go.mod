// What the tests with modules of their own have in common is in a module of its own, because the program must not depend on
// the libraries of those tests.
module hyperkube/e2e/suite

go 1.26.0

require github.com/google/go-containerregistry v0.22.1

require (
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
)
