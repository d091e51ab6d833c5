package pullcredentials

import (
	"os"
	"path/filepath"
)

// DockerConfigs returns the paths of the node's Docker configuration files.
func DockerConfigs(root string) []string {
	out := []string{filepath.Join(root, "config.json")}
	if home, err := os.UserHomeDir(); err == nil {
		out = append(out, filepath.Join(home, ".docker", "config.json"))
	}
	return append(out, "/.docker/config.json")
}
