// Package customresource serves CustomResourceDefinitions: it watches the definitions, accepts
// their names, creates api.Resources for them with the same verbs, store and watch cache as
// built-in kinds, and deletes the instances of deleted definitions.
//
// A definition costs little until it is used: schemas, validation rules and conversion clients are
// created when the first object needs them.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
package customresource
