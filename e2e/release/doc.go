// Package release tests the files of a release (`make release`): checksums, archives, packages, the install script
// and the container image. `make release-test` runs it; it needs root, and the environment variable
// HYPERKUBE_RELEASE with the directory of the release.
package release
