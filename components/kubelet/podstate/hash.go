package podstate

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// Hash of the part of a container's definition whose change makes a new
// container: its name and image, all that the API lets change and that cannot
// be changed in place. Every kubelet computes it so, which is why one can adopt
// the containers of another.
func Hash(c *v1.Container) string {
	pick := struct {
		Name  string `json:"name"`
		Image string `json:"image"`
	}{c.Name, c.Image}
	raw, err := json.Marshal(pick)
	if err != nil {
		return ""
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%s", raw)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}
