package control

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// TemplateHash returns the hash of a pod template that is part of the name of its object: a ReplicaSet of a Deployment,
// or a ControllerRevision of a DaemonSet. collisions is the owner's collision count, which changes the hash if another
// object has the name; nil means that there was no collision. The hash is equal to upstream's, so that replacing
// upstream's controllers does not cause a rollout.
func TemplateHash(template *corev1.PodTemplateSpec, collisions *int32) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%v", dump.ForHash(*template))
	if collisions != nil {
		var b [8]byte
		binary.LittleEndian.PutUint32(b[:], uint32(*collisions))
		h.Write(b[:])
	}
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}
