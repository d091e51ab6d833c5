package images

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/distribution/reference"
)

var imageID = regexp.MustCompile(`^(sha256:)?[0-9a-f]{64}$`)

// Normalize returns the full form of a reference as container runtimes and
// users know it: registry and repository completed, the tag "latest" added
// when there is neither tag nor digest, the tag dropped when there are both.
func Normalize(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("failed to parse image reference %q: %w", ref, err)
	}
	return named.String(), nil
}

// repository returns the part of a normalised reference before tag or digest.
func repository(normal string) string {
	if named, err := reference.ParseNormalizedNamed(normal); err == nil {
		return named.Name()
	}
	return normal
}

func isDigest(normal string) bool { return strings.Contains(normal, "@") }
