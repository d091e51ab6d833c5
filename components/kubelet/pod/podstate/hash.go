package podstate

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// Hash returns the hash of the fields of a container whose change requires a new container: its
// name and image, which are all fields that the API allows to change and that cannot be changed in
// place. The hash equals upstream's, so that a kubelet can adopt the containers of another one.
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
