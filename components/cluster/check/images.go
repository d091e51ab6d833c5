package check

import (
	"context"
	"encoding/json"
	"path"
	"strings"
)

// imageChecks returns the checks of the container runtime's image store.
func imageChecks() []check { return []check{{"images", checkImages}} }

// checkImages compares the records of images with the layers on disk. The runtime ignores images with missing layers,
// so that the kubelet pulls them again, which is impossible for imported images. A damaged record is a warning.
// Built-in images are not checked, because the runtime creates them again when it starts.
func checkImages(_ context.Context, m *Machine, o *outcome) {
	store := m.Layout.Runtime()
	if !m.exists(path.Join(store, "images")) {
		o.skip("the machine has no images")
		return
	}
	for _, name := range m.names(path.Join(store, "images")) {
		if path.Ext(name) != ".json" {
			continue
		}
		var image struct {
			ID           string
			Tags, Layers []string
			BuiltIn      bool
			Pinned       bool
		}
		file := path.Join(store, "images", name)
		if err := json.Unmarshal([]byte(m.read(file)), &image); err != nil || image.ID == "" {
			o.warnf("delete it with `rm "+file+"`, then restart the runtime with `hyperkube stop` and `"+m.Cluster.Start+"`", "the record %s of an image is damaged, so its image is not used", file)
			continue
		}
		if image.BuiltIn { // created again at the next start
			continue
		}
		missing := 0
		for _, layer := range image.Layers {
			if !m.exists(path.Join(store, "layers", layer, "fs")) {
				missing++
			}
		}
		if missing == 0 {
			continue
		}
		names := strings.Join(image.Tags, ", ")
		if names == "" {
			names = image.ID
		}
		if image.Pinned {
			o.errorf("import it again with `hyperkube image import FILE`", "%d layers of the imported image %s are missing on disk, so new containers with it fail", missing, names)
		} else {
			o.warnf("run `hyperkube image pull "+names+"`", "%d layers of the image %s are missing on disk, so the kubelet pulls it again", missing, names)
		}
	}
}
