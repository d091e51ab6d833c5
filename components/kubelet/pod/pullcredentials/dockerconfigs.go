package pullcredentials

import (
	"os"
	"path/filepath"
)

// DockerConfigs returns the paths of the Docker configuration files of the node that may have credentials, in
// the order of their precedence. root is the kubelet's root directory. The files need not exist.
func DockerConfigs(root string) []string {
	out := []string{filepath.Join(root, "config.json")}
	if home, err := os.UserHomeDir(); err == nil {
		out = append(out, filepath.Join(home, ".docker", "config.json"))
	}
	return append(out, "/.docker/config.json")
}
