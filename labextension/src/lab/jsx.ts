/** The function that JSX compiles to. A short name of our own makes the bundle smaller, in some hundred places. */

import { Fragment, createElement } from "react";

export const h = createElement;
export { Fragment };
