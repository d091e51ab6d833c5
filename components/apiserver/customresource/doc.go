// Package customresource serves the kinds that users define: it follows the
// CustomResourceDefinitions, decides on their names, makes api.Resources of
// them for the same verbs, store and watch cache as built-in kinds have, and
// deletes the instances of those that go.
//
// A definition costs little until it is used: schemas, validation rules and
// conversion clients are made when the first object needs them.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
package customresource
